// SPDX-License-Identifier: Apache-2.0
#include "nnl/generator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "kernels/real.h"
#include "nnl/json.h"
#include "nnl/model.h"
#include "random.h"
#include "text/unicode.h"

namespace nnl {
namespace {

constexpr size_t kFew = 8;  // tokens of a text that a run takes, at least, where it takes several
constexpr char kBegin[] = "begin";  // an output of `source`: tokens that every answer begins with

void check(const Sampling& how) {
  const auto want = [](const char* name, bool fits, double value, const char* wanted) {
    if (!fits)
      throw ValueError("Generator: " + std::string(name) + " is " + std::to_string(value) +
                       ", wanted " + wanted);
  };
  want("temperature", how.temperature >= 0, how.temperature, "at least 0");
  want("top_k", how.top_k >= 0, static_cast<double>(how.top_k), "at least 0");
  want("top_p", how.top_p > 0 && how.top_p <= 1, how.top_p, "more than 0 and at most 1");
  want("min_p", how.min_p >= 0 && how.min_p <= 1, how.min_p, "0 to 1");
  want("repetition_penalty", how.repetition_penalty > 0, how.repetition_penalty, "more than 0");
}

// Chooses tokens, as nnl.models.generation.sampling does.
class Chooser {
 public:
  Chooser(const Sampling& how, uint64_t stream) : how_(how), random_(how.seed, stream) {}

  int64_t choose(const float* scores, int64_t n, const std::vector<int64_t>& text) {
    p_.assign(scores, scores + n);
    if (how_.repetition_penalty != 1) {
      for (int64_t t : text) {
        const double s = scores[t];
        p_[static_cast<size_t>(t)] =
            s < 0 ? s * how_.repetition_penalty : s / how_.repetition_penalty;
      }
    }
    const auto best = std::max_element(p_.begin(), p_.end());
    if (how_.temperature == 0) return best - p_.begin();
    const double most = *best;
    for (double& p : p_) p = std::exp((p - most) / how_.temperature);
    keep();
    double rest = drawn() * std::accumulate(p_.begin(), p_.end(), 0.0);
    int64_t last = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (p_[static_cast<size_t>(i)] == 0) continue;
      last = i;
      rest -= p_[static_cast<size_t>(i)];
      if (rest < 0) break;
    }
    return last;
  }

 private:
  // Leaves of the weights those that top_k, top_p and min_p let be.
  void keep() {
    if (how_.top_k > 0 && how_.top_k < static_cast<int64_t>(p_.size())) {
      std::vector<double> sorted = p_;
      const auto kth = sorted.begin() + (how_.top_k - 1);
      std::nth_element(sorted.begin(), kth, sorted.end(), std::greater<>());
      for (double& p : p_) p = p < *kth ? 0 : p;
    }
    if (how_.top_p < 1) {
      std::vector<size_t> order;
      for (size_t i = 0; i < p_.size(); ++i)
        if (p_[i] > 0) order.push_back(i);
      const auto better = [&](size_t a, size_t b) {
        return p_[a] != p_[b] ? p_[a] > p_[b] : a < b;
      };
      const double enough = how_.top_p * std::accumulate(p_.begin(), p_.end(), 0.0);
      double before = 0;  // of those that are better
      size_t sorted = 0;  // more of them as they are needed, which is a small part
      size_t k = 0;
      for (; k < order.size() && before < enough; ++k) {
        if (k == sorted) {
          sorted = std::min(order.size(), std::max<size_t>(1024, 8 * sorted));
          const auto begin = order.begin() + static_cast<std::ptrdiff_t>(k);
          std::partial_sort(begin, order.begin() + static_cast<std::ptrdiff_t>(sorted), order.end(),
                            better);
        }
        before += p_[order[k]];
      }
      for (; k < order.size(); ++k) p_[order[k]] = 0;
    }
    if (how_.min_p > 0) {
      const double least = how_.min_p * *std::max_element(p_.begin(), p_.end());
      for (double& p : p_) p = p < least ? 0 : p;
    }
  }

  // In [0, 1).
  double drawn() {
    uint64_t words[4];
    random_.block(count_++, words);
    return static_cast<double>(words[0] >> 11) * 0x1p-53;
  }

  const Sampling how_;
  Philox random_;
  uint64_t count_ = 0;
  std::vector<double> p_;
};

// What a file says of text.
struct Speech {
  explicit Speech(std::string_view json)
      : said(Json::parse(json)),
        tokenizer(said.at("tokenizer")),
        ends(said.at("ends").integers()),
        turns(said.find("turns")) {}

  Json said;
  Tokenizer tokenizer;
  std::vector<int64_t> ends;
  const Json* turns;  // null: the template says something else
};

std::string trimmed(const std::string& text) {
  std::vector<uint32_t> chars = chars_of(text);
  const auto blank = [](uint32_t c) { return kind_of(c) == CharKind::space; };
  chars.erase(std::find_if_not(chars.rbegin(), chars.rend(), blank).base(), chars.end());
  chars.erase(chars.begin(), std::find_if_not(chars.begin(), chars.end(), blank));
  return utf8_of(chars);
}

}  // namespace

struct Generator::State {
  explicit State(const std::string& path) : file(path), read(program("read")) {
    const Spec &tokens = read.input("tokens").spec(), &made = read.output("scores").spec();
    const std::vector<OpenAxis>& axes = read.input("tokens").axes();
    if (axes.size() != 2 || axes[1].name.empty() || made.shape.size() != 2 || !is_real(made.dtype))
      throw ValueError("Generator: " + path + " takes tokens " + tokens.text() +
                       ", wanted any number of them of each text, as save_program now writes it");
    chunk = static_cast<size_t>(axes[1].greatest);
    takes_some = !axes[0].name.empty();
    vocabulary = made.shape[1];
    for (const std::string& name : file.parameters()) {
      if (name.rfind("cache/", 0) != 0) continue;
      const Shape shape = file.parameter(name).spec().shape;
      if (shape.size() == 4) texts.resize(static_cast<size_t>(shape[0])), capacity = shape[2];
    }
    if (!capacity) throw ValueError("Generator: " + path + " has no caches");
    if (!has("source")) return;
    source = std::make_unique<Model>(file, "source");
    for (const Tensor& part : source->outputs()) {
      if (part.name() == kBegin) continue;
      memory.emplace_back(part.name(), std::vector<char>(texts.size() * part.spec().bytes()));
      std::vector<char>& rows = memory.back().second;
      read.input(part.name()).bind(static_cast<void*>(rows.data()), rows.size());
    }
  }

  bool has(const char* name) const {
    const auto names = file.programs();
    return std::find(names.begin(), names.end(), name) != names.end();
  }

  Model program(const char* name) const {
    if (!has(name))
      throw ValueError("Generator: " + file.path() + " has no program '" + name +
                       "': it is not what Pretrained.save_program writes");
    return Model(file, name);
  }

  // A text that is being written, in a row of the caches.
  struct Job {
    Job(size_t place, size_t row, const Tokens& prompt, const Sampling& how)
        : place(place), row(row), whole(prompt), chooser(how, place) {}

    size_t place, row;
    Tokens whole;  // the prompt and what was written
    Chooser chooser;
  };

  void check_prompt(const Tokens& prompt) const {
    const auto length = static_cast<int64_t>(prompt.size());
    const int64_t most = source ? source->input("tokens").size() : capacity - 1;
    if (length < 1 || length > most)
      throw ValueError("Generator: the prompt has " + std::to_string(length) +
                       " tokens, wanted 1 to " + std::to_string(most));
    for (int64_t t : prompt)
      if (t < 0 || t >= vocabulary)
        throw ValueError("Generator: the prompt has the token " + std::to_string(t) +
                         ", wanted 0 to " + std::to_string(vocabulary - 1));
  }

  // The row that no job has and whose text begins most as a prompt does; the rest is forgotten.
  size_t row_for(const Tokens& prompt, const std::vector<Job>& jobs) {
    size_t best = texts.size(), most = 0;
    for (size_t row = 0; row < texts.size(); ++row) {
      if (std::any_of(jobs.begin(), jobs.end(), [&](const Job& j) { return j.row == row; }))
        continue;
      const Tokens& text = texts[row];
      const auto known = static_cast<size_t>(
          std::mismatch(text.begin(), text.end(), prompt.begin(), prompt.end() - 1).first -
          text.begin());
      if (best == texts.size() || known > most) best = row, most = known;
    }
    texts[best].resize(most);
    return best;
  }

  Job start(size_t place, const Tokens& prompt, const Sampling& how, const std::vector<Job>& jobs) {
    if (!source) return {place, row_for(prompt, jobs), prompt, how};
    Tensor& tokens = source->input("tokens");
    std::fill_n(tokens.data<int64_t>(), tokens.size(), 0);
    std::copy(prompt.begin(), prompt.end(), tokens.data<int64_t>());
    *source->input("counts").data<int64_t>() = static_cast<int64_t>(prompt.size());
    source->run();
    const Tensor& begin = source->output(kBegin);
    const auto* first = begin.data<float>();
    const Tokens answer(first, first + begin.size());
    const size_t row = row_for(answer, jobs);
    texts[row].clear();  // it answered another source
    for (auto& [name, rows] : memory) {
      const Tensor& part = source->output(name);
      std::memcpy(rows.data() + row * part.spec().bytes(), part.data(), part.spec().bytes());
    }
    return {place, row, answer, how};
  }

  // Which rows a run is of: of the jobs and, to a power of two, of others; of all, in their order,
  // where the program takes no less.
  std::vector<size_t> rows_of(const std::vector<Job>& jobs) const {
    std::vector<size_t> rows(texts.size());
    std::iota(rows.begin(), rows.end(), 0);
    if (!takes_some) return rows;
    for (size_t at = 0; at < jobs.size(); ++at)
      std::iter_swap(rows.begin() + at, std::find(rows.begin() + at, rows.end(), jobs[at].row));
    size_t count = 1;
    while (count < jobs.size()) count *= 2;
    rows.resize(std::min(count, texts.size()));
    return rows;
  }

  // Lets the network read what it has not read of each text, a part of it where that is long.
  // Returns where the scores of what follows what it has read are, for each.
  std::vector<const float*> feed(const std::vector<Job>& jobs) {
    const auto unread = [&](const Job& job) { return job.whole.size() - texts[job.row].size(); };
    size_t longest = 0, size = 1;
    for (const Job& job : jobs) longest = std::max(longest, unread(job));
    if (longest > 1)
      for (size = kFew; size < longest;) size *= 2;
    size = std::min(size, chunk);
    const std::vector<size_t> rows = rows_of(jobs);
    const auto count = static_cast<int64_t>(rows.size());
    read.input("tokens").resize({count, static_cast<int64_t>(size)});
    if (takes_some)
      for (const char* name : {"before", "counts", "slots"}) read.input(name).resize({count});
    int64_t* tokens = read.input("tokens").data<int64_t>();
    int64_t *before = read.input("before").data<int64_t>(),
            *counts = read.input("counts").data<int64_t>();
    std::fill_n(tokens, rows.size() * size, 0);
    std::fill_n(counts, count, 0);
    for (size_t at = 0; at < rows.size(); ++at)
      before[at] = static_cast<int64_t>(texts[rows[at]].size());
    if (takes_some) std::copy(rows.begin(), rows.end(), read.input("slots").data<int64_t>());
    const auto place = [&](size_t k) { return takes_some ? k : jobs[k].row; };
    for (size_t k = 0; k < jobs.size(); ++k) {
      const Job& job = jobs[k];
      const size_t now = std::min(unread(job), size);
      std::copy_n(job.whole.end() - static_cast<std::ptrdiff_t>(unread(job)), now,
                  tokens + place(k) * size);
      counts[place(k)] = static_cast<int64_t>(now);
    }
    read.run();
    std::vector<const float*> found;
    const Tensor& made = read.output("scores");
    const float* all = made.spec().dtype == DType::f32 ? made.data<float>() : converted(made);
    for (size_t k = 0; k < jobs.size(); ++k) {
      Tokens& text = texts[jobs[k].row];
      const auto next = jobs[k].whole.begin() + static_cast<std::ptrdiff_t>(text.size());
      text.insert(text.end(), next, next + counts[place(k)]);
      found.push_back(all + static_cast<int64_t>(place(k)) * vocabulary);
    }
    return found;
  }

  const float* converted(const Tensor& x) {
    scores.resize(static_cast<size_t>(x.size()));
    convert(x.spec().dtype, x.data(), DType::f32, scores.data(), x.size());
    return scores.data();
  }

  // Read when it is first asked for: a large vocabulary takes a while.
  const Speech& speech() {
    if (speech_) return *speech_;
    if (file.language().empty())
      throw ValueError("Generator: " + file.path() + " has no tokenizer");
    try {
      speech_ = std::make_unique<Speech>(file.language());
    } catch (const ValueError& e) {
      throw ValueError("Generator: " + file.path() + ": " + e.what());
    }
    return *speech_;
  }

  ModelFile file;
  Model read;
  std::unique_ptr<Model> source;  // what reads the text to be answered, where there is one
  std::vector<std::pair<std::string, std::vector<char>>> memory;  // what it gives, by row
  size_t chunk = 0;         // the most tokens of a text that a run takes
  bool takes_some = false;  // runs are of any rows, not of all
  int64_t vocabulary = 0, capacity = 0;
  std::vector<Tokens> texts;  // what is in the caches, by row
  std::vector<float> scores;  // where the model gives others

 private:
  std::unique_ptr<Speech> speech_;
};

Generator::Generator(const std::string& path) : state_(std::make_unique<State>(path)) {}
Generator::~Generator() = default;
Generator::Generator(Generator&&) noexcept = default;
Generator& Generator::operator=(Generator&&) noexcept = default;

int64_t Generator::vocabulary() const { return state_->vocabulary; }
int64_t Generator::capacity() const { return state_->capacity; }

int64_t Generator::batch() const { return static_cast<int64_t>(state_->texts.size()); }

Generator::Tokens Generator::generate(const Tokens& prompt, int64_t most, const Tokens& ends,
                                      const Sampling& how,
                                      const std::function<bool(int64_t)>& each) {
  const auto one = [&](size_t, int64_t token) { return !each || each(token); };
  return std::move(generate_all({prompt}, most, ends, how, one)[0]);
}

std::vector<Generator::Tokens> Generator::generate_all(
    const std::vector<Tokens>& prompts, int64_t most, const Tokens& ends, const Sampling& how,
    const std::function<bool(size_t, int64_t)>& each) {
  State& s = *state_;
  check(how);
  if (most < 1)
    throw ValueError("Generator: most is " + std::to_string(most) + ", wanted 1 or more");
  for (const Tokens& prompt : prompts) s.check_prompt(prompt);
  std::vector<Tokens> found(prompts.size());
  std::vector<State::Job> jobs;
  for (size_t next = 0; next < prompts.size() || !jobs.empty();) {
    while (next < prompts.size() && jobs.size() < s.texts.size()) {
      jobs.push_back(s.start(next, prompts[next], how, jobs));
      ++next;
    }
    const std::vector<const float*> scores = s.feed(jobs);
    const auto ended = [&](State::Job& job, const float* own) {
      if (s.texts[job.row].size() < job.whole.size()) return false;  // has more to read
      const int64_t token = job.chooser.choose(own, s.vocabulary, job.whole);
      if (std::find(ends.begin(), ends.end(), token) != ends.end()) return true;
      job.whole.push_back(token), found[job.place].push_back(token);
      return (each && !each(job.place, token)) ||
             static_cast<int64_t>(found[job.place].size()) == most ||
             static_cast<int64_t>(job.whole.size()) >= s.capacity;
    };
    std::vector<State::Job> rest;
    for (size_t k = 0; k < jobs.size(); ++k)
      if (!ended(jobs[k], scores[k])) rest.push_back(std::move(jobs[k]));
    jobs = std::move(rest);
  }
  return found;
}

const Tokenizer& Generator::tokenizer() const { return state_->speech().tokenizer; }

std::string Generator::write(const std::string& prompt, int64_t most, const Sampling& how,
                             const std::function<bool(const std::string&)>& each) {
  const auto one = [&](size_t, const std::string& piece) { return !each || each(piece); };
  return write_all({prompt}, most, how, one)[0];
}

std::vector<std::string> Generator::write_all(
    const std::vector<std::string>& prompts, int64_t most, const Sampling& how,
    const std::function<bool(size_t, const std::string&)>& each) {
  std::vector<Tokens> tokens;
  for (const std::string& prompt : prompts) tokens.push_back(tokenizer().encode(prompt));
  return say(tokens, most, how, each);
}

std::string Generator::answer(const std::vector<Message>& messages, int64_t most,
                              const Sampling& how,
                              const std::function<bool(const std::string&)>& each) {
  const auto one = [&](size_t, const std::string& piece) { return !each || each(piece); };
  return say({tokenizer().encode(conversation(messages), false)}, most, how, one)[0];
}

std::string Generator::conversation(const std::vector<Message>& messages) const {
  const Json* turns = state_->speech().turns;
  if (!turns)
    throw ValueError("Generator: the chat template of " + state_->file.path() +
                     " is not one of words around messages: give write() the whole text");
  if (messages.empty()) throw ValueError("Generator: there are no messages");
  std::string found = messages[0].role == "system" ? "" : turns->at("open").text();
  const bool trims = turns->at("trim").flag();
  for (const Message& m : messages) {
    const bool known = m.role == "system" || m.role == "user" || m.role == "assistant";
    const Json* turn = known ? turns->find(m.role) : nullptr;
    if (!turn || turn->array().size() != 2)
      throw ValueError("Generator: the chat template knows no messages of the role '" + m.role +
                       "'");
    found += turn->array()[0].text() + (trims ? trimmed(m.content) : m.content) +
             turn->array()[1].text();
  }
  return found + turns->at("answer").text();
}

std::vector<std::string> Generator::say(
    const std::vector<Tokens>& prompts, int64_t most, const Sampling& how,
    const std::function<bool(size_t, const std::string&)>& each) {
  const Speech& speech = state_->speech();
  std::vector<TextStream> said(prompts.size(), TextStream(speech.tokenizer));
  std::vector<bool> goes_on(prompts.size(), true);
  generate_all(prompts, most, speech.ends, how, [&](size_t place, int64_t token) {
    const std::string piece = said[place].add(token);
    return goes_on[place] = piece.empty() || !each || each(place, piece);
  });
  std::vector<std::string> found;
  for (size_t place = 0; place < said.size(); ++place) {
    const std::string rest = said[place].rest();
    if (goes_on[place] && !rest.empty() && each) each(place, rest);
    found.push_back(said[place].text());
  }
  return found;
}

}  // namespace nnl

// SPDX-License-Identifier: Apache-2.0
#include "nnl/generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "nnl/json.h"
#include "nnl/model.h"
#include "random.h"
#include "text/unicode.h"

namespace nnl {
namespace {

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
  explicit Chooser(const Sampling& how) : how_(how), random_(how.seed, 0) {}

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
  explicit State(const std::string& path)
      : file(path), read(program("read")), step(program("step")) {
    const Spec &tokens = read.input("tokens").spec(), &scores = step.output("scores").spec();
    if (tokens.shape.size() != 2 || tokens.shape[0] != 1 || scores.shape.size() != 2)
      throw ValueError("Generator: " + path + " takes tokens " + tokens.text() +
                       ", wanted those of one text");
    chunk = tokens.shape[1];
    vocabulary = scores.shape[1];
    for (const std::string& name : file.parameters()) {
      if (name.rfind("cache/", 0) != 0) continue;
      const Shape shape = file.parameter(name).spec().shape;
      if (shape.size() == 4) capacity = shape[2];
    }
    if (!capacity) throw ValueError("Generator: " + path + " has no caches");
  }

  Model program(const char* name) const {
    const auto names = file.programs();
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw ValueError("Generator: " + file.path() + " has no program '" + name +
                       "': it is not what Pretrained.save_program writes");
    return Model(file, name);
  }

  // Lets the network read tokens; the scores of what follows the last one.
  const float* feed(const int64_t* tokens, int64_t n) {
    while (true) {
      const int64_t size = n == 1 ? 1 : chunk, now = std::min(n, size);
      Model& m = n == 1 ? step : read;
      int64_t* to = m.input("tokens").data<int64_t>();
      std::fill_n(std::copy_n(tokens, now, to), size - now, 0);
      *m.input("before").data<int64_t>() = static_cast<int64_t>(text.size());
      *m.input("counts").data<int64_t>() = now;
      m.run();
      text.insert(text.end(), tokens, tokens + now);
      tokens += now, n -= now;
      if (n == 0) return m.output("scores").data<float>();
    }
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
  Model read, step;
  int64_t chunk = 0, vocabulary = 0, capacity = 0;
  std::vector<int64_t> text;  // what is in the caches

 private:
  std::unique_ptr<Speech> speech_;
};

Generator::Generator(const std::string& path) : state_(std::make_unique<State>(path)) {}
Generator::~Generator() = default;
Generator::Generator(Generator&&) noexcept = default;
Generator& Generator::operator=(Generator&&) noexcept = default;

int64_t Generator::vocabulary() const { return state_->vocabulary; }
int64_t Generator::capacity() const { return state_->capacity; }

std::vector<int64_t> Generator::generate(const std::vector<int64_t>& prompt, int64_t most,
                                         const std::vector<int64_t>& ends, const Sampling& how,
                                         const std::function<bool(int64_t)>& each) {
  State& s = *state_;
  check(how);
  if (most < 1)
    throw ValueError("Generator: most is " + std::to_string(most) + ", wanted 1 or more");
  const auto length = static_cast<int64_t>(prompt.size());
  if (length < 1 || length >= s.capacity)
    throw ValueError("Generator: the prompt has " + std::to_string(length) +
                     " tokens, wanted 1 to " + std::to_string(s.capacity - 1));
  for (int64_t t : prompt)
    if (t < 0 || t >= s.vocabulary)
      throw ValueError("Generator: the prompt has the token " + std::to_string(t) +
                       ", wanted 0 to " + std::to_string(s.vocabulary - 1));
  const auto known =
      std::mismatch(s.text.begin(), s.text.end(), prompt.begin(), prompt.end() - 1).second -
      prompt.begin();
  s.text.resize(static_cast<size_t>(known));
  Chooser chooser(how);
  std::vector<int64_t> whole = prompt, found;
  const float* scores = s.feed(prompt.data() + known, length - known);
  while (true) {
    const int64_t token = chooser.choose(scores, s.vocabulary, whole);
    if (std::find(ends.begin(), ends.end(), token) != ends.end()) break;
    whole.push_back(token), found.push_back(token);
    if (each && !each(token)) break;
    if (static_cast<int64_t>(found.size()) == most) break;
    if (static_cast<int64_t>(whole.size()) >= s.capacity) break;
    scores = s.feed(&token, 1);
  }
  return found;
}

const Tokenizer& Generator::tokenizer() const { return state_->speech().tokenizer; }

std::string Generator::write(const std::string& prompt, int64_t most, const Sampling& how,
                             const std::function<bool(const std::string&)>& each) {
  return say(tokenizer().encode(prompt), most, how, each);
}

std::string Generator::answer(const std::vector<Message>& messages, int64_t most,
                              const Sampling& how,
                              const std::function<bool(const std::string&)>& each) {
  return say(tokenizer().encode(conversation(messages), false), most, how, each);
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

std::string Generator::say(const std::vector<int64_t>& prompt, int64_t most, const Sampling& how,
                           const std::function<bool(const std::string&)>& each) {
  const Speech& speech = state_->speech();
  TextStream said(speech.tokenizer);
  bool goes_on = true;
  generate(prompt, most, speech.ends, how, [&](int64_t token) {
    const std::string piece = said.add(token);
    return goes_on = piece.empty() || !each || each(piece);
  });
  const std::string rest = said.rest();
  if (goes_on && !rest.empty() && each) each(rest);
  return said.text();
}

}  // namespace nnl

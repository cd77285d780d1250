// SPDX-License-Identifier: Apache-2.0
#include "nnl/tokenizer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "files.h"
#include "nnl/json.h"
#include "text/model.h"
#include "text/parts.h"
#include "text/unicode.h"

namespace nnl {
namespace {

struct Added {
  std::string text;
  int64_t id;
  bool special, normalized, takes_left, takes_right;  // blanks on these sides
};

}  // namespace

struct Tokenizer::State {
  explicit State(const Json& json)
      : normalizers(normalizers_of(json.find("normalizer"))),
        cuts(cuts_of(json.find("pre_tokenizer"))),
        decoders(decoders_of(json.find("decoder"))),
        model(text_model_of(json.at("model"))) {
    read_added(json);
    read_template(json.find("post_processor"));
  }

  void normalize(std::string& text) const {
    for (const auto& change : normalizers) change(text);
  }

  // Cuts a text where one of the added tokens is written: the leftmost, of these the longest.
  void find_added(Pieces& pieces, bool normalized) const {
    Pieces found;
    for (Piece& piece : pieces) {
      if (piece.token >= 0) {
        found.push_back(std::move(piece));
        continue;
      }
      const std::string& text = piece.text;
      size_t begin = 0;
      for (size_t at = 0; at < text.size();) {
        const Added* token = added_at(text, at, normalized);
        if (!token) {
          ++at;
          continue;
        }
        size_t from = at, to = at + token->text.size();
        if (token->takes_left) from = std::max(begin, blanks_before(text, from));
        if (token->takes_right)
          for (size_t next = to; to < text.size(); to = next)
            if (kind_of(next_char(text, next)) != CharKind::space) break;
        if (from > begin)
          found.push_back({text.substr(begin, from - begin), piece.first && !begin});
        found.push_back({"", false, token->id});
        at += token->text.size(), begin = to;  // the next one may be among the blanks taken
      }
      if (begin < text.size()) found.push_back({text.substr(begin), piece.first && !begin});
    }
    pieces = std::move(found);
  }

  Changes<std::string> normalizers;
  Changes<Pieces> cuts;
  Changes<Words> decoders;
  std::vector<int64_t> around[2];  // tokens before a text and after it
  std::unique_ptr<TextModel> model;
  std::unordered_map<int64_t, Added> added;

 private:
  const Added* added_at(const std::string& text, size_t at, bool normalized) const {
    const auto found = by_byte[normalized].find(text[at]);
    if (found == by_byte[normalized].end()) return nullptr;
    for (const Added* token : found->second)  // the longest first
      if (text.compare(at, token->text.size(), token->text) == 0) return token;
    return nullptr;
  }

  static size_t blanks_before(const std::string& text, size_t end) {
    while (end > 0) {
      size_t begin = end - 1;
      while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) --begin;
      size_t at = begin;
      if (kind_of(next_char(text, at)) != CharKind::space) break;
      end = begin;
    }
    return end;
  }

  void read_added(const Json& json) {
    const Json* tokens = json.find("added_tokens");
    if (!tokens || tokens->is_null()) return;
    for (const Json& item : tokens->array()) {
      Added token{item.at("content").text(), item.at("id").integer(), flag(item, "special"),
                  flag(item, "normalized"),  flag(item, "lstrip"),    flag(item, "rstrip")};
      if (flag(item, "single_word"))
        throw ValueError("the token " + token.text + " is a single_word, which is not supported");
      if (token.id < 0 || token.text.empty())
        throw ValueError("the added token " + token.text + " is " + std::to_string(token.id));
      if (token.normalized) normalize(token.text);  // also where it is decoded
      added.insert_or_assign(token.id, token);
    }
    for (const auto& [id, token] : added)
      if (!token.text.empty()) by_byte[token.normalized][token.text[0]].push_back(&token);
    for (auto& of_kind : by_byte)
      for (auto& [byte, list] : of_kind)
        std::sort(list.begin(), list.end(),
                  [](auto* a, auto* b) { return a->text.size() > b->text.size(); });
  }

  void read_template(const Json* json) {
    each_part(json, "processors", [&](const Json& part, const std::string& type) {
      if (type == "ByteLevel") return;  // moves places in the text only
      if (type == "BertProcessing" || type == "RobertaProcessing") {
        for (const char* name : {"cls", "sep"}) {
          const auto& token = part.at(name).array();
          if (token.size() != 2) throw ValueError("the post_processor has no " + std::string(name));
          around[*name == 's'].push_back(token[1].integer());
        }
        return;
      }
      if (type != "TemplateProcessing")
        unknown("post_processor", type,
                "ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing or a Sequence of "
                "such");
      std::vector<int64_t> own[2];
      bool after = false;
      for (const Json& item : part.at("single").array()) {
        if (const Json* token = item.find("SpecialToken")) {
          const Json& ids = part.at("special_tokens").at(token->at("id").text()).at("ids");
          for (int64_t id : ids.integers()) own[after].push_back(id);
        } else {
          if (after) throw ValueError("the post_processor has a text twice");
          item.at("Sequence"), after = true;
        }
      }
      if (!after) throw ValueError("the post_processor has no text");
      around[0].insert(around[0].begin(), own[0].begin(), own[0].end());
      around[1].insert(around[1].end(), own[1].begin(), own[1].end());
    });
  }

  std::unordered_map<char, std::vector<const Added*>> by_byte[2];  // by `normalized`
};

Tokenizer::Tokenizer(const Json& json) {
  try {
    state_ = std::make_unique<State>(json);
  } catch (const ValueError& e) {
    throw ValueError(std::string("Tokenizer: ") + e.what());
  }
}

Tokenizer::Tokenizer(const std::string& path) {
  try {
    state_ = std::make_unique<State>(Json::parse(MappedFile(path).bytes()));
  } catch (const ValueError& e) {
    const std::string what = e.what();
    throw what.rfind(path, 0) == 0 ? e : ValueError(path + ": " + what);
  }
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<int64_t> Tokenizer::encode(std::string_view text, bool special) const {
  const State& s = *state_;
  Pieces whole{{valid_utf8(text), true}}, pieces;
  s.find_added(whole, false);
  std::vector<int64_t> found;
  if (special) found = s.around[0];
  for (Piece& part : whole) {
    if (part.token < 0) s.normalize(part.text);
    pieces = {std::move(part)};
    s.find_added(pieces, true);
    for (const auto& cut : s.cuts) cut(pieces);
    for (const Piece& piece : pieces) {
      if (piece.token >= 0) {
        found.push_back(piece.token);
      } else {
        s.model->encode(piece.text, found);
      }
    }
  }
  if (special) found.insert(found.end(), s.around[1].begin(), s.around[1].end());
  return found;
}

std::string Tokenizer::decode(const std::vector<int64_t>& tokens) const {
  const State& s = *state_;
  Words words;
  for (int64_t id : tokens) {
    const auto added = s.added.find(id);
    if (added != s.added.end()) {
      if (!added->second.special) words.push_back(added->second.text);
    } else if (const std::string* token = s.model->token(id)) {
      words.push_back(*token);
    }
  }
  for (const auto& change : s.decoders) change(words);
  std::string found;
  for (const std::string& word : words) found += word;
  return found;
}

std::string TextStream::add(int64_t token) {
  tokens_.push_back(token);
  text_ = tokenizer_->decode(tokens_);
  size_t end = text_.size();
  while (end >= 3 && text_.compare(end - 3, 3, "\xef\xbf\xbd") == 0) end -= 3;
  return told(end);
}

std::string TextStream::rest() { return told(text_.size()); }

std::string TextStream::told(size_t end) {
  const size_t begin = std::min(told_, end);
  told_ = std::max(told_, end);
  return text_.substr(begin, end - begin);
}

}  // namespace nnl

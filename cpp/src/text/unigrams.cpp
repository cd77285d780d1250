// SPDX-License-Identifier: Apache-2.0
// Unigram: of all ways to cut a text into tokens the one with the largest sum of scores, as
// SentencePiece, T5, ALBERT and XLM-RoBERTa have it.
//
// Source: Kudo, Subword Regularization, arXiv:1804.10959, section 3.1.
#include <algorithm>
#include <limits>
#include <string_view>

#include "nnl/errors.h"
#include "text/model.h"
#include "text/parts.h"
#include "text/unicode.h"

namespace nnl {
namespace {

constexpr double unknown_penalty = 10;  // below the smallest score of a token

class Unigrams : public TextModel {
 public:
  explicit Unigrams(const Json& json) {
    const auto& vocab = json.at("vocab").array();
    std::vector<double> scores;
    for (const Json& item : vocab) {
      if (item.array().size() != 2) throw ValueError("a token of the model has no score");
      scores.push_back(item.array()[1].number());
      worst_ = std::min(worst_, scores.back());
      add(item.array()[0].text(), static_cast<int64_t>(scores.size()) - 1);
    }
    if (scores.empty()) throw ValueError("the model has no tokens");
    end_vocabulary();
    for (const auto& [token, id] : ids_)
      if (!token.empty()) sorted_.push_back({token, id, scores[static_cast<size_t>(id)]});
    std::sort(sorted_.begin(), sorted_.end(),
              [](const Entry& a, const Entry& b) { return a.token < b.token; });
    byte_fallback_ = flag(json, "byte_fallback");
    const Json* unknown = json.find("unk_id");
    if (!unknown || unknown->is_null()) return;
    unknown_ = unknown->integer();
    if (!token(unknown_))
      throw ValueError("unk_id is " + std::to_string(unknown_) + ", which is no token");
  }

  void encode(const std::string& piece, std::vector<int64_t>& to) const override {
    struct Best {  // way that ends at a byte
      double score = 0;
      size_t begin = SIZE_MAX;  // of its last token
      int64_t id = -1;
    };
    std::vector<Best> best(piece.size() + 1);
    for (size_t at = 0, next = 0; at < piece.size(); at = next) {
      next_char(piece, next);
      const double before = best[at].score;
      const auto offer = [&](size_t end, double score, int64_t id) {
        if (best[end].begin == SIZE_MAX || before + score > best[end].score)
          best[end] = {before + score, at, id};
      };
      bool known = false;  // this character alone
      each_token(piece, at, [&](const Entry& entry) {
        const size_t end = at + entry.token.size();
        offer(end, entry.score, entry.id);
        known = known || end == next;
      });
      if (known) continue;
      if (unknown_ < 0) throw ValueError("Tokenizer: the text has characters that are no tokens");
      offer(next, worst_ - unknown_penalty, unknown_);
    }
    std::vector<std::pair<size_t, size_t>> parts;  // from the end on; unknown ones become one
    bool joins = false;
    for (size_t end = piece.size(); end > 0; end = best[end].begin) {
      const bool is_unknown = best[end].id == unknown_;
      if (is_unknown && joins) {
        parts.back().first = best[end].begin;
      } else {
        parts.emplace_back(best[end].begin, end);
      }
      joins = is_unknown;
    }
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      const std::string text = piece.substr(part->first, part->second - part->first);
      const int64_t id = find(text);
      if (id < 0 && byte_fallback_ && add_bytes(text, to)) continue;
      to.push_back(id < 0 ? unknown_ : id);
    }
  }

 private:
  struct Entry {
    std::string_view token;
    int64_t id;
    double score;
  };

  // The tokens that a text begins with from a byte on, the shortest first.
  template <class F>
  void each_token(const std::string& text, size_t begin, F take) const {
    auto from = sorted_.begin(), to = sorted_.end();
    for (size_t n = 0; begin + n < text.size(); ++n) {
      const auto byte = [n](const Entry& e) {
        return n < e.token.size() ? static_cast<uint8_t>(e.token[n]) : -1;
      };
      const int wanted = static_cast<uint8_t>(text[begin + n]);
      from = std::partition_point(from, to, [&](const Entry& e) { return byte(e) < wanted; });
      to = std::partition_point(from, to, [&](const Entry& e) { return byte(e) == wanted; });
      if (from == to) return;
      if (from->token.size() == n + 1) take(*from);
    }
  }

  std::vector<Entry> sorted_;
  double worst_ = std::numeric_limits<double>::infinity();
  int64_t unknown_ = -1;
  bool byte_fallback_ = false;
};

}  // namespace

std::unique_ptr<TextModel> unigrams_of(const Json& json) {
  return std::make_unique<Unigrams>(json);
}

}  // namespace nnl

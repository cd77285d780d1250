// SPDX-License-Identifier: Apache-2.0
// WordPiece: the longest token that a word begins with, then the longest that goes on, as BERT has
// it.
#include "nnl/errors.h"
#include "text/model.h"
#include "text/unicode.h"

namespace nnl {
namespace {

class WordPieces : public TextModel {
 public:
  explicit WordPieces(const Json& json) {
    add_all(json.at("vocab"));
    unknown_ = named(json, "unk_token");
    if (unknown_ < 0) throw ValueError("the model has no unk_token");
    if (const Json* found = json.find("continuing_subword_prefix")) prefix_ = found->text();
    if (const Json* found = json.find("max_input_chars_per_word")) most_ = found->integer();
  }

  void encode(const std::string& piece, std::vector<int64_t>& to) const override {
    std::vector<size_t> ends;  // of its characters
    for (size_t at = 0; at < piece.size(); ends.push_back(at)) next_char(piece, at);
    if (static_cast<int64_t>(ends.size()) > most_) return to.push_back(unknown_);
    const size_t before = to.size();
    for (size_t begin = 0; begin < piece.size();) {
      int64_t id = -1;
      size_t end = 0;
      for (size_t k = ends.size(); id < 0 && k > 0 && ends[k - 1] > begin; --k) {
        end = ends[k - 1];
        id = find((begin ? prefix_ : "") + piece.substr(begin, end - begin));
      }
      if (id < 0) {  // the word as a whole is unknown
        to.resize(before);
        return to.push_back(unknown_);
      }
      to.push_back(id);
      begin = end;
    }
  }

 private:
  std::string prefix_ = "##";
  int64_t unknown_, most_ = 100;
};

}  // namespace

std::unique_ptr<TextModel> word_pieces_of(const Json& json) {
  return std::make_unique<WordPieces>(json);
}

}  // namespace nnl

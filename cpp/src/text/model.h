// SPDX-License-Identifier: Apache-2.0
// The "model" of a tokenizer.json: what makes tokens of a piece of text. What each does is what the
// package tokenizers (0.23) does with it.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "nnl/json.h"

namespace nnl {

class TextModel {
 public:
  virtual ~TextModel() = default;
  virtual void encode(const std::string& piece, std::vector<int64_t>& to) const = 0;
  const std::string* token(int64_t id) const;  // null: there is none

 protected:
  void add(const std::string& token, int64_t id);
  void add_all(const Json& vocab);                         // {token: id, ...}
  void end_vocabulary();                                   // after the last one was added
  int64_t find(const std::string& token) const;            // -1: there is none
  int64_t named(const Json& json, const char* key) const;  // the token of this name; -1: null

  // The tokens <0x00> to <0xFF> of some bytes; false: there is none for one of them.
  bool add_bytes(const std::string& text, std::vector<int64_t>& to) const;

  std::unordered_map<std::string, int64_t> ids_;

 private:
  std::unordered_map<int64_t, const std::string*> tokens_;
  std::array<int64_t, 256> bytes_;
};

// ValueError: the model is damaged, or none of those that are known.
std::unique_ptr<TextModel> text_model_of(const Json& json);

std::unique_ptr<TextModel> byte_pairs_of(const Json& json);
std::unique_ptr<TextModel> word_pieces_of(const Json& json);
std::unique_ptr<TextModel> unigrams_of(const Json& json);

}  // namespace nnl

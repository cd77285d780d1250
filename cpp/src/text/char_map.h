// SPDX-License-Identifier: Apache-2.0
// What SentencePiece makes of characters before it cuts a text: its "precompiled_charsmap", a trie
// in an array of units (Darts' double array) and the texts that its leaves name.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nnl {

class CharMap {
 public:
  // In base64, as tokenizer.json has it. ValueError: it is damaged.
  explicit CharMap(std::string_view base64);
  std::string apply(const std::string& text) const;

 private:
  // What the shortest key becomes that a text begins with; null: there is none.
  const char* find(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::string texts_;  // each ends with a zero
};

}  // namespace nnl

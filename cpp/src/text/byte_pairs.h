// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding: a piece of text becomes the tokens that its characters are joined to.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "nnl/json.h"

namespace nnl {

class BytePairs {
 public:
  // The "model" of a tokenizer.json. ValueError: it is another one, or damaged.
  explicit BytePairs(const Json& json);

  void encode(const std::string& piece, std::vector<int64_t>& to) const;
  const std::string* token(int64_t id) const;  // null: there is none

 private:
  struct Merge {
    int64_t rank, id;
  };

  int64_t find(const std::string& token) const;  // -1: there is none
  void add_merge(const std::string& a, const std::string& b, int64_t rank);

  std::unordered_map<std::string, int64_t> ids_;
  std::unordered_map<int64_t, const std::string*> tokens_;
  std::unordered_map<uint64_t, Merge> merges_;  // by two ids
  std::array<int64_t, 256> bytes_;              // tokens <0x00> to <0xFF>
  int64_t unknown_ = -1;
  bool byte_fallback_ = false, fuse_unknown_ = false, whole_first_ = false;
};

}  // namespace nnl

// SPDX-License-Identifier: Apache-2.0
#include "text/char_map.h"

#include <cstring>

#include "nnl/errors.h"
#include "text/unicode.h"

namespace nnl {
namespace {

std::string bytes_of(std::string_view base64) {
  static const std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (!base64.empty() && base64.back() == '=') base64.remove_suffix(1);
  std::string found;
  uint32_t bits = 0;
  int count = 0;
  for (char c : base64) {
    const size_t digit = digits.find(c);
    if (digit == digits.npos) throw ValueError("precompiled_charsmap is no base64");
    bits = bits << 6 | static_cast<uint32_t>(digit), count += 6;
    if (count >= 8) found += static_cast<char>(bits >> (count -= 8));
  }
  return found;
}

}  // namespace

CharMap::CharMap(std::string_view base64) {
  const std::string bytes = bytes_of(base64);
  uint32_t size = 0;  // of the trie, in bytes; all numbers are little-endian
  const auto number = [&](size_t at) {
    uint32_t n = 0;
    for (size_t i = 4; i-- > 0;) n = n << 8 | static_cast<uint8_t>(bytes[at + i]);
    return n;
  };
  if (bytes.size() >= 4) size = number(0);
  if (size == 0 || size % 4 || size > bytes.size() - 4)
    throw ValueError("precompiled_charsmap is damaged");
  for (size_t at = 4; at < 4 + size; at += 4) units_.push_back(number(at));
  texts_ = bytes.substr(4 + size);
}

const char* CharMap::find(std::string_view text) const {
  const auto offset = [](uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); };
  size_t place = offset(units_[0]);
  for (char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    place ^= byte;
    if (byte == 0 || place >= units_.size()) return nullptr;
    const uint32_t unit = units_[place];
    if ((unit & (1u << 31 | 0xff)) != byte) return nullptr;
    place ^= offset(unit);
    if (!(unit & 1u << 8)) continue;
    const size_t leaf = place < units_.size() ? units_[place] & ~(1u << 31) : texts_.size();
    return leaf < texts_.size() ? texts_.c_str() + leaf : nullptr;
  }
  return nullptr;
}

std::string CharMap::apply(const std::string& text) const {
  std::string found;
  size_t begin = 0;
  for (size_t end : grapheme_ends(text)) {
    const std::string_view part(text.data() + begin, end - begin);
    begin = end;
    // A short part becomes what its beginning does: the rest of it is lost, as it is in
    // SentencePiece's own files.
    if (const char* whole = part.size() < 6 ? find(part) : nullptr) {
      found += whole;
      continue;
    }
    for (size_t at = 0, next = 0; at < part.size(); at = next) {
      next_char(part, next);
      const std::string_view one = part.substr(at, next - at);
      const char* changed = find(one);
      changed ? found += changed : found += one;
    }
  }
  return found;
}

}  // namespace nnl

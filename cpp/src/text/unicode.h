// SPDX-License-Identifier: Apache-2.0
// Characters: what Unicode says of them, as UTF-8 and back, and the normal form C.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nnl {

// Lu and Lt, Ll, Lm and Lo, M, N of the general categories; space is White_Space.
enum class CharKind : uint8_t { other, upper, lower, letter, mark, number, space };

struct CharPair {  // `whole` decomposes into a and b, or into a alone where b is 0
  uint32_t whole, a, b;
  uint32_t composes;  // whether a and b are written as `whole`
};

CharKind kind_of(uint32_t c);
inline bool is_letter(CharKind k) { return k >= CharKind::upper && k <= CharKind::letter; }

void append_utf8(std::string& text, uint32_t c);

// The character that begins at a byte, which is moved behind it. What is no UTF-8 gives U+FFFD, one
// for as many bytes as could have begun a character.
uint32_t next_char(std::string_view text, size_t& at);
std::vector<uint32_t> chars_of(std::string_view text);
std::string utf8_of(const std::vector<uint32_t>& chars);
std::string valid_utf8(std::string_view text);  // the same, with U+FFFD for what is none

// Normal form C. Source: Unicode Standard Annex #15.
std::string composed(const std::string& text);

}  // namespace nnl

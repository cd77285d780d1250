// SPDX-License-Identifier: Apache-2.0
// Characters: what Unicode says of them, as UTF-8 and back, and the normal forms.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nnl {

// Lu and Lt, Ll, Lm and Lo, M but Mn, Mn, N, P, C of the general categories; space is White_Space.
enum class CharKind : uint8_t {
  other,
  upper,
  lower,
  letter,
  mark,
  accent,
  number,
  punctuation,
  control,
  space
};

struct CharPair {  // `whole` decomposes into a and b, or into a alone where b is 0
  uint32_t whole, a, b;
  uint32_t composes;  // whether a and b are written as `whole`
};

CharKind kind_of(uint32_t c);
inline bool is_mark(CharKind k) { return k == CharKind::mark || k == CharKind::accent; }
inline bool is_letter(CharKind k) { return k >= CharKind::upper && k <= CharKind::letter; }

void append_utf8(std::string& text, uint32_t c);

// The character that begins at a byte, which is moved behind it. What is no UTF-8 gives U+FFFD, one
// for as many bytes as could have begun a character.
uint32_t next_char(std::string_view text, size_t& at);
std::vector<uint32_t> chars_of(std::string_view text);
std::string utf8_of(const std::vector<uint32_t>& chars);
std::string valid_utf8(std::string_view text);  // the same, with U+FFFD for what is none

// Normal form C, D, KC or KD. Source: Unicode Standard Annex #15.
std::string normal_form(const std::string& text, bool compatible, bool compose);

// Each character on its own in small letters.
std::string lowered(const std::string& text);

// Where the parts of a text end that are seen as one character: a base and what is written on it.
// Parts of six bytes and more may be cut further. Source: Unicode Standard Annex #29.
std::vector<size_t> grapheme_ends(std::string_view text);

}  // namespace nnl

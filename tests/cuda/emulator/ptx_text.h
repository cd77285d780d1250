// SPDX-License-Identifier: Apache-2.0
// Words, numbers and signs of a text.
#pragma once

#include "ptx_code.h"

namespace emu {

struct Token {
  enum Kind : u8 { kEnd, kWord, kNumber, kReal32, kReal64, kText, kSign } kind = kEnd;
  std::string text;  // a word or a sign
  u64 bits = 0;      // a number
  u32 line = 0;

  bool is(std::string_view t) const { return (kind == kWord || kind == kSign) && text == t; }
};

std::vector<Token> tokens_of(std::string_view ptx);
std::vector<std::string> lines_of(std::string_view ptx);
// A word like "setp.lt.and.ftz.f32" taken apart.
Name name_of(const std::string& opcode);
Type type_named(std::string_view word);  // ".u32" without the point; kNone if it is none

}  // namespace emu

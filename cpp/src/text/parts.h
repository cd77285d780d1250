// SPDX-License-Identifier: Apache-2.0
// The parts of a tokenizer.json, each as a list of functions. What they do is what the package
// tokenizers (0.23) does with them.
//
// ValueError: a part is damaged, or none of those that are known.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "nnl/json.h"
#include "text/splitting.h"

namespace nnl {

// A part of a text; `token` is what it is, or -1.
struct Piece {
  std::string text;
  bool first;  // the text begins with it
  int64_t token = -1;
};
using Pieces = std::vector<Piece>;
using Words = std::vector<std::string>;

template <class T>
using Changes = std::vector<std::function<void(T&)>>;

Changes<std::string> normalizers_of(const Json* json);  // before a text is cut
Changes<Pieces> cuts_of(const Json* json);              // pre_tokenizer
Changes<Words> decoders_of(const Json* json);           // from tokens to what they write

// ---- for those who read them ----

bool flag(const Json& json, const char* name, bool otherwise = false);

// A kind of part that is not known: its name, and what are.
[[noreturn]] void unknown(const std::string& what, const std::string& name, const char* known);

void replace_all(std::string& text, const std::string& from, const std::string& to);
Splitter pattern_of(const Json& json);  // what a Replace or a Split looks for
std::function<void(std::string&)> replacement_of(const Json& json);  // what a Replace does

// The parts of a Sequence, or the one part that it is; none for null.
void each_part(const Json* json, const char* list,
               const std::function<void(const Json&, const std::string& type)>& take);

// What blanks are written as, and where one is put before a text.
struct Metaspace {
  explicit Metaspace(const Json& json);
  std::string blank;
  bool always, first;
};

// Bytes as characters: GPT-2's, which gives every byte one that can be seen.
const std::string& char_of_byte(uint8_t byte);
int byte_of_char(uint32_t c);  // -1: of none

}  // namespace nnl

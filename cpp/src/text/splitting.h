// SPDX-License-Identifier: Apache-2.0
// Where texts are cut before byte pairs are joined: what the regular expressions of known
// tokenizers match, each by a scanner of its own.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nnl {

// What is looked for.
struct Splitter {
  enum class Kind {
    literal,  // `text`
    blanks,   // \s+
    spaces,   // two or more of " "
    marks,    // ASCII's signs and all punctuation, each
    numbers,  // \p{N}{1,most}
    simple,   // words as GPT-2 has them
    words,    // as Llama 3 and Qwen have them
    cased     // as GPT-4o has them: a capital letter begins a word
  };
  Kind kind;
  int most = 1;              // digits of one piece; 0 for any
  bool contractions = true;  // whether 's, 't and so on are pieces
  std::string text = {};
};

// ValueError: nothing here does what the expression says; the text shows it.
Splitter splitter_of(const std::string& expression);

// Where it is found in a UTF-8 text, from left to right: begin and end in bytes.
std::vector<std::pair<size_t, size_t>> matches(const Splitter& pattern, std::string_view text);

}  // namespace nnl

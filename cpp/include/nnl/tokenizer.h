// SPDX-License-Identifier: Apache-2.0
// Texts to tokens and back, as tokenizer.json says: byte pairs, as GPT-2, Llama, Qwen, Mistral,
// Gemma, Phi, OLMo, SmolLM and RoBERTa have them; WordPiece, as BERT and MiniLM have it; and
// Unigram of SentencePiece, as T5, ALBERT and XLM-RoBERTa have it.
//
//   nnl::Tokenizer tokenizer("tokenizer.json");
//   std::vector<int64_t> tokens = tokenizer.encode("To be, or");
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nnl/errors.h"

namespace nnl {

class Json;

// May be used by several threads at once.
class NNL_API Tokenizer {
 public:
  // From a tokenizer.json, or what it says. ValueError: it is damaged, or has parts that are not
  // known here; the text names them.
  explicit Tokenizer(const std::string& path);
  explicit Tokenizer(const Json& json);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // The tokens of a UTF-8 text, with those that begin and end one if `special`. What is no UTF-8
  // counts as U+FFFD. Special tokens that are written in the text are found in any case.
  std::vector<int64_t> encode(std::string_view text, bool special = true) const;

  // The text of tokens, without the special ones and what are no tokens. Bytes that are no UTF-8
  // give U+FFFD, each.
  std::string decode(const std::vector<int64_t>& tokens) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The text of tokens as they come. Of a character whose bytes have not all come, nothing is told.
class NNL_API TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  std::string add(int64_t token);  // what is certain to be text now, and was not before
  std::string rest();              // what was held back
  const std::string& text() const { return text_; }  // all so far

 private:
  std::string told(size_t end);

  const Tokenizer* tokenizer_;
  std::vector<int64_t> tokens_;
  std::string text_;
  size_t told_ = 0;
};

}  // namespace nnl

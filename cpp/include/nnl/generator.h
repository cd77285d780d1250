// SPDX-License-Identifier: Apache-2.0
// Writes on from tokens, with a language model that Pretrained.save_program has written.
//
//   nnl::Generator model("model.nnlp");
//   std::string answer = model.answer({{"user", "What is a tensor?"}}, 64);
//   for (int64_t token : model.generate({1, 520, 338}, 64)) ...
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nnl/errors.h"
#include "nnl/tokenizer.h"

namespace nnl {

// How the next token is chosen from its scores, in this order.
struct Sampling {
  double repetition_penalty = 1;  // divides scores of tokens of the text; multiplies negative ones
  double temperature = 0;         // divides the scores; 0 takes the best token
  int64_t top_k = 0;              // only so many of the best; 0 for all
  double top_p = 1;               // only the fewest of the best whose probabilities sum to it
  double min_p = 0;               // only those with at least this share of the best probability
  uint64_t seed = 0;
};

struct Message {
  std::string role, content;  // role: "system", "user" or "assistant"
};

// In one thread at a time. What it has read stays in the caches: a prompt that begins as one of the
// latest texts did is read from where it differs.
class NNL_API Generator {
 public:
  using Tokens = std::vector<int64_t>;

  // ValueError: the file is damaged, or has no program "read" as Pretrained.save_program writes it.
  explicit Generator(const std::string& path);
  ~Generator();
  Generator(Generator&&) noexcept;
  Generator& operator=(Generator&&) noexcept;

  int64_t vocabulary() const;
  int64_t capacity() const;  // tokens of a text, prompt and answer; of a T5 only the answer
  int64_t batch() const;     // texts side by side, as save_program was told

  // Up to `most` tokens that follow the prompt, or answer it where the model is of that kind (T5),
  // without the one of `ends` that ends them. Each is
  // handed to `each` as it is chosen; false ends the text.
  //
  // ValueError: the prompt is empty or fills the caches, a token is none of the vocabulary, or a
  // setting is out of range.
  Tokens generate(const Tokens& prompt, int64_t most, const Tokens& ends = {},
                  const Sampling& how = {}, const std::function<bool(int64_t)>& each = {});

  // The same for several prompts, of any lengths: batch() of them side by side, and as one ends
  // the next one begins. A text draws the same numbers whatever is beside it: those of the seed and
  // its place. `each` gets the place, too.
  std::vector<Tokens> generate_all(const std::vector<Tokens>& prompts, int64_t most,
                                   const Tokens& ends = {}, const Sampling& how = {},
                                   const std::function<bool(size_t, int64_t)>& each = {});

  // ---- in texts, of a model that was saved with its tokenizer ----
  //
  // ValueError: it was not, or its tokenizer is not known here; see nnl/tokenizer.h.

  const Tokenizer& tokenizer() const;

  // What follows a text, up to a token that ends one. `each` gets it in pieces as it is written.
  std::string write(const std::string& prompt, int64_t most, const Sampling& how = {},
                    const std::function<bool(const std::string&)>& each = {});

  std::vector<std::string> write_all(
      const std::vector<std::string>& prompts, int64_t most, const Sampling& how = {},
      const std::function<bool(size_t, const std::string&)>& each = {});

  // The answer to a conversation. ValueError: see conversation().
  std::string answer(const std::vector<Message>& messages, int64_t most, const Sampling& how = {},
                     const std::function<bool(const std::string&)>& each = {});

  // A conversation as the model knows it, up to where its answer begins. ValueError: there are no
  // messages, a role is unknown, or the model's template is not one of the same words around every
  // message of a role, which is what is known of it here.
  std::string conversation(const std::vector<Message>& messages) const;

 private:
  std::vector<std::string> say(const std::vector<Tokens>& prompts, int64_t most,
                               const Sampling& how,
                               const std::function<bool(size_t, const std::string&)>& each);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nnl

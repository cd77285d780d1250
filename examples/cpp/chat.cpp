// SPDX-License-Identifier: Apache-2.0
// Talks with a language model that Pretrained.save_program has written: each line of the input is
// what the user says, each answer a line of the output.
//
//   chat model.nnlp [--system TEXT] [--most N] [--temperature T] [--top-p P] [--seed S] [--time]
//
// --write: lines are texts to be written on from, each alone. --tokens: they are tokens, as numbers
// with blanks between them, and so is what is written; --end TOKEN ends it.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "nnl/generator.h"

int main(int count, char** words) {
  nnl::Sampling how;
  int64_t most = 64;
  std::vector<int64_t> ends;
  std::vector<nnl::Message> talk;
  std::string path;
  bool timed = false, write = false, tokens = false;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--time") {
      timed = true;
    } else if (word == "--write") {
      write = true;
    } else if (word == "--tokens") {
      tokens = true;
    } else if (word.rfind("--", 0) == 0 && i + 1 < count) {
      const char* value = words[++i];
      if (word == "--system") talk.push_back({"system", value});
      if (word == "--most") most = std::atoll(value);
      if (word == "--end") ends.push_back(std::atoll(value));
      if (word == "--temperature") how.temperature = std::atof(value);
      if (word == "--top-p") how.top_p = std::atof(value);
      if (word == "--seed") how.seed = std::strtoull(value, nullptr, 10);
    } else {
      path = word;
    }
  }
  if (path.empty()) {
    std::fprintf(stderr,
                 "usage: chat MODEL.nnlp [--system TEXT] [--most N] [--temperature T] [--top-p P]"
                 " [--seed S] [--time] [--write] [--tokens [--end TOKEN]]\n");
    return 2;
  }
  try {
    nnl::Generator model(path);
    for (std::string line; std::getline(std::cin, line);) {
      const auto begin = std::chrono::steady_clock::now();
      int64_t pieces = 0;
      const auto told = [&](const auto& piece) {
        ++pieces;
        std::cout << piece << (tokens ? " " : "") << std::flush;
        return true;
      };
      if (tokens) {
        std::istringstream numbers(line);
        std::vector<int64_t> prompt;
        for (int64_t token; numbers >> token;) prompt.push_back(token);
        model.generate(prompt, most, ends, how, told);
      } else if (write) {
        model.write(line, most, how, told);
      } else {
        talk.push_back({"user", line});
        talk.push_back({"assistant", model.answer(talk, most, how, told)});
      }
      std::cout << std::endl;
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
      if (timed)
        std::fprintf(stderr, "%.1f pieces a second\n", static_cast<double>(pieces) / time.count());
    }
  } catch (const nnl::ValueError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

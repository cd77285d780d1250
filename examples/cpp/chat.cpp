// SPDX-License-Identifier: Apache-2.0
// Writes on from tokens, line by line: each line of the input is a prompt, as numbers with blanks
// between them, and each line of the output what follows it. What makes numbers of texts is the
// tokenizer of the model; see docs/guides/language.md.
//
//   chat model.nnlp [--most N] [--end TOKEN] [--temperature T] [--top-p P] [--seed S] [--time]
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
  std::string path;
  bool timed = false;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--time") {
      timed = true;
    } else if (word.rfind("--", 0) == 0 && i + 1 < count) {
      const char* value = words[++i];
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
                 "usage: chat MODEL.nnlp [--most N] [--end TOKEN] [--temperature T]"
                 " [--top-p P] [--seed S] [--time]\n");
    return 2;
  }
  try {
    nnl::Generator model(path);
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream numbers(line);
      std::vector<int64_t> prompt;
      for (int64_t token; numbers >> token;) prompt.push_back(token);
      const auto begin = std::chrono::steady_clock::now();
      const auto found = model.generate(prompt, most, ends, how, [](int64_t token) {
        std::cout << token << ' ' << std::flush;
        return true;
      });
      std::cout << std::endl;
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
      if (timed)
        std::fprintf(stderr, "%.1f tokens a second\n",
                     static_cast<double>(found.size()) / time.count());
    }
  } catch (const nnl::ValueError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

// SPDX-License-Identifier: Apache-2.0
// Talks with a language model that Pretrained.save_program has written: each line of the input is
// what the user says, each answer a line of the output.
//
//   chat model.nnlp [--system TEXT] [--most N] [--temperature T] [--top-p P] [--seed S] [--time]
//
// --write: lines are texts to be written on from, each alone. --tokens: they are tokens, as numbers
// with blanks between them, and so is what is written; --end TOKEN ends it. --together: all lines
// are read first, and written on from side by side.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "nnl/generator.h"

namespace {

std::vector<int64_t> numbers_of(const std::string& line) {
  std::istringstream numbers(line);
  std::vector<int64_t> found;
  for (int64_t token; numbers >> token;) found.push_back(token);
  return found;
}

}  // namespace

int main(int count, char** words) {
  nnl::Sampling how;
  int64_t most = 64;
  std::vector<int64_t> ends;
  std::vector<nnl::Message> talk;
  std::string path;
  bool timed = false, write = false, tokens = false, together = false;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--time") {
      timed = true;
    } else if (word == "--write") {
      write = true;
    } else if (word == "--tokens") {
      tokens = true;
    } else if (word == "--together") {
      together = true;
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
                 " [--seed S] [--time] [--write | --tokens [--end TOKEN]] [--together]\n");
    return 2;
  }
  try {
    nnl::Generator model(path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(std::cin, line);) {
      if (together) {
        lines.push_back(line);
        continue;
      }
      const auto begin = std::chrono::steady_clock::now();
      int64_t pieces = 0;
      const auto told = [&](const auto& piece) {
        ++pieces;
        std::cout << piece << (tokens ? " " : "") << std::flush;
        return true;
      };
      if (tokens) {
        model.generate(numbers_of(line), most, ends, how, told);
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
    if (tokens) {
      std::vector<std::vector<int64_t>> prompts;
      for (const std::string& line : lines) prompts.push_back(numbers_of(line));
      for (const auto& found : model.generate_all(prompts, most, ends, how)) {
        for (int64_t token : found) std::cout << token << " ";
        std::cout << "\n";
      }
    } else if (together) {
      for (const std::string& found : model.write_all(lines, most, how)) std::cout << found << "\n";
    }
  } catch (const nnl::ValueError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

// SPDX-License-Identifier: Apache-2.0
// Runs a program from a file with inputs that are read from files of raw numbers, or zeros.
//
//   run_model lenet.nnlp [--program NAME] [--times N] [x=pixels.bin ...]
//
// Prints what the program takes and gives, the first numbers of each output, and the time of a run.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "nnl/model.h"

namespace {

void read_file(nnl::Tensor& x, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  if (bytes.size() != x.spec().bytes())
    throw nnl::ValueError(path + " has " + std::to_string(bytes.size()) + " bytes, wanted " +
                          std::to_string(x.spec().bytes()) + " for " + x.spec().text());
  std::memcpy(x.data(), bytes.data(), bytes.size());
}

void print(const nnl::Tensor& y) {
  std::printf("%s: %s", y.name().c_str(), y.spec().text().c_str());
  if (y.spec().dtype == nnl::DType::f32)
    for (int64_t i = 0; i < std::min<int64_t>(y.size(), 8); ++i)
      std::printf("%s%g", i ? ", " : " = ", static_cast<double>(y.data<float>()[i]));
  std::printf("\n");
}

int run(const std::vector<std::string>& args) {
  std::string path, program;
  int times = 1;
  std::vector<std::string> files;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--program" && i + 1 < args.size()) {
      program = args[++i];
    } else if (args[i] == "--times" && i + 1 < args.size()) {
      times = std::max(1, std::atoi(args[++i].c_str()));
    } else if (args[i].find('=') != std::string::npos) {
      files.push_back(args[i]);
    } else {
      path = args[i];
    }
  }
  if (path.empty()) {
    std::fprintf(stderr, "usage: run_model FILE.nnlp [--program NAME] [--times N] [INPUT=FILE]\n");
    return 2;
  }
  nnl::Model model(path, program);
  for (const std::string& file : files)
    read_file(model.input(file.substr(0, file.find('='))), file.substr(file.find('=') + 1));
  for (const nnl::Tensor& x : model.inputs())
    std::printf("takes %s: %s\n", x.name().c_str(), x.spec().text().c_str());
  std::vector<double> taken;
  for (int n = 0; n < times; ++n) {
    const auto start = std::chrono::steady_clock::now();
    model.run();
    taken.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
            .count());
  }
  for (const nnl::Tensor& y : model.outputs()) print(y);
  std::sort(taken.begin(), taken.end());
  std::printf("%.3f ms a run\n", taken[taken.size() / 2]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const nnl::ValueError& e) {
    std::fprintf(stderr, "run_model: error: %s\n", e.what());
    return 1;
  }
}

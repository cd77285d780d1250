// SPDX-License-Identifier: Apache-2.0
// Files of programs: .nnlp, what nnl.save_program and nnl-convert write, and .nnp, whose executors
// are programs.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nnl/program.h"

namespace nnl {

class MappedFile;
class Safetensors;

// A program as the JSON that files hold. ValueError: it is none.
NNL_API ProgramData program_of(const std::string& json);

// Where an array of a file lies in memory.
struct FileArray {
  Spec spec;
  void* data;
};

// A file, mapped copy-on-write: what is written to its arrays stays in this process.
class NNL_API ProgramFile {
 public:
  // Args: only: of a .nnp, the one executor or network to read; all its executors if it is empty.
  // ValueError: there is no such file, it is damaged, or of a newer version. The text names it.
  explicit ProgramFile(const std::string& path, const std::string& only = "");
  ~ProgramFile();
  ProgramFile(const ProgramFile&) = delete;
  ProgramFile& operator=(const ProgramFile&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<std::pair<std::string, ProgramData>>& programs() const { return programs_; }
  const std::map<std::string, FileArray>& arrays() const { return arrays_; }
  // Names of parameters, and whether they are trained: what a file of them has.
  const std::vector<std::pair<std::string, bool>>& parameters() const { return parameters_; }
  // What it says of text, as JSON (nnl/models/huggingface/stored.py); empty where it says nothing.
  std::string_view language() const { return language_; }
  // Kernels for OpenCL devices, as JSON (src/opencl/stored.h); empty where it has none.
  std::string_view kernels() const { return kernels_; }

 private:
  void read();
  void read_nnp(const std::string& only);

  std::string path_;
  std::unique_ptr<MappedFile> file_;
  std::unique_ptr<Safetensors> tensors_;
  std::vector<std::shared_ptr<void>> memory_;    // of the parameters of a .nnp
  std::deque<std::array<uint64_t, 2>> streams_;  // of random numbers in a .nnp: key, counter
  std::map<std::string, FileArray> arrays_;
  std::vector<std::pair<std::string, ProgramData>> programs_;
  std::vector<std::pair<std::string, bool>> parameters_;
  std::string_view language_, kernels_;
};

}  // namespace nnl

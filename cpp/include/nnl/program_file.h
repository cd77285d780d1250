// SPDX-License-Identifier: Apache-2.0
// Files of programs, .nnlp: what nnl.save_program and nnl-convert write.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nnl/program.h"

namespace nnl {

// Where an array of a file lies in memory.
struct FileArray {
  Spec spec;
  void* data;
};

// A file, mapped copy-on-write: what is written to its arrays stays in this process.
class NNL_API ProgramFile {
 public:
  // ValueError: there is no such file, it is damaged, or of a newer version. The text names it.
  explicit ProgramFile(const std::string& path);
  ~ProgramFile();
  ProgramFile(const ProgramFile&) = delete;
  ProgramFile& operator=(const ProgramFile&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<std::pair<std::string, ProgramData>>& programs() const { return programs_; }
  const std::map<std::string, FileArray>& arrays() const { return arrays_; }

 private:
  void read();
  void read_arrays(const std::string& header, size_t start);

  std::string path_;
  char* data_ = nullptr;
  size_t size_ = 0;
  std::vector<std::pair<std::string, ProgramData>> programs_;
  std::map<std::string, FileArray> arrays_;
  std::vector<std::unique_ptr<char[]>> copies_;  // of arrays that do not begin where they should
};

}  // namespace nnl

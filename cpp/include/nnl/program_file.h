// SPDX-License-Identifier: Apache-2.0
// Files of programs, .nnlp: what nnl.save_program and nnl-convert write.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nnl/attributes.h"
#include "nnl/spec.h"

namespace nnl {

// A value of a program, by number; number 0 stands for an input that is left out.
struct ProgramValue {
  enum class Role { input, parameter, state, constant, intermediate };
  Spec spec;
  Role role = Role::intermediate;
  std::string name;
  int root = 0;         // the value whose memory it is
  int copies = 0;       // the given value that it is in another element type
  bool filled = false;  // a constant of one number
  double fill = 0;
  bool given() const { return role != Role::intermediate; }
};

struct ProgramStep {
  std::string op, label;  // label: what messages call it, "affine in fc (train.py:12)"
  std::unordered_map<std::string, Attribute> attributes;
  std::vector<int> in, out;
  std::vector<int> writes;         // positions of the inputs that it changes
  bool view = false;               // the output is the memory of the first input
  bool second = false;             // it belongs to the second part of a training step
  std::vector<ProgramStep> parts;  // of a fused step, those it replaces
  // How an element-wise step is asked for where it has no kernel of its own.
  std::vector<int64_t> code;
  std::vector<double> constants;
  std::vector<Shape> shapes;
};

struct ProgramData {
  std::vector<ProgramValue> values;
  std::vector<ProgramStep> steps;
  std::vector<std::pair<std::string, int>> outputs;
  std::vector<int> kept;
  std::map<int, int> results;  // value -> the given value that it is a new copy of
  std::map<int, int> carries;  // given value -> the value that it has after a run, 0 for zeros
};

// Where an array of a file lies in memory.
struct FileArray {
  Spec spec;
  void* data;
};

// A file, mapped copy-on-write: what is written to its arrays stays in this process.
class ProgramFile {
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

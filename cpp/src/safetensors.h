// SPDX-License-Identifier: Apache-2.0
// Files of arrays, .safetensors, which programs are in too.
// Source: https://github.com/huggingface/safetensors#format
#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nnl/json.h"
#include "nnl/program_file.h"
#include "nnl/spec.h"

namespace nnl {

class Safetensors {
 public:
  // Over the bytes of a file, which must stay there. ValueError: they are damaged.
  Safetensors(char* data, size_t size);

  // Whether bytes begin as those of such a file do, be it whole or not.
  static bool begins(const char* data, size_t size);

  std::map<std::string, FileArray> arrays;
  std::map<std::string, std::string> metadata;

 private:
  std::vector<std::unique_ptr<char[]>> copies_;  // of arrays that do not begin where they should
};

// A shape whose bytes fit into memory addresses.
Shape shape_of(const Json& json, DType type);

// The header of a file that holds these arrays one behind the other, in this order, which is that
// of their elements' sizes, the largest first.
std::string safetensors_header(const std::vector<std::pair<std::string, Spec>>& arrays);

}  // namespace nnl

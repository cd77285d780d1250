// SPDX-License-Identifier: Apache-2.0
// What the models of one file share.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "nnl/model.h"
#include "nnl/program_file.h"
#include "shared_arrays.h"

namespace nnl {

// What is made once of the arrays of a file, as these were in one version.
struct PreparedArray {
  std::shared_ptr<std::byte> memory;
  uint64_t version = 0;
};

struct ModelFile::State {
  explicit State(const std::string& path) : file(path) {
    for (const auto& [name, array] : file.arrays())
      arrays.by_name.emplace(name, SharedArray(array.spec, array.data));
  }

  const ProgramData& program(const std::string& wanted) const {
    std::string names;
    for (const auto& [name, found] : file.programs()) {
      if (name == wanted || (wanted.empty() && file.programs().size() == 1)) return found;
      names += (names.empty() ? "'" : ", '") + name + "'";
    }
    if (names.empty()) throw ValueError(file.path() + " has no programs");
    throw ValueError(file.path() + " has the programs " + names +
                     (wanted.empty() ? ": say which one" : ", not '" + wanted + "'"));
  }

  SharedArray& array(const std::string& name) {
    const auto found = arrays.by_name.find(name);
    if (found == arrays.by_name.end()) throw ValueError("there is no tensor '" + name + "'");
    return found->second;
  }

  // The name of one of its programs.
  const std::string& name_of(const ProgramData& program) const {
    const auto is = [&](const auto& one) { return &one.second == &program; };
    return std::find_if(file.programs().begin(), file.programs().end(), is)->first;
  }

  ProgramFile file;
  SharedArrays arrays;
  // By program, and by the threads it runs on: kernels for other numbers may want another order.
  // Then by Runner::Prepared::key, for runners of all sizes.
  using PreparedArrays = std::map<std::string, std::weak_ptr<PreparedArray>>;
  std::map<std::pair<const ProgramData*, int>, PreparedArrays> prepared;
};

}  // namespace nnl

// SPDX-License-Identifier: Apache-2.0
#include "nnl/kernel.h"

#include <algorithm>
#include <map>

#include "nnl/threads.h"

namespace nnl {
namespace {

// Several kernels may stand behind one op (oneDNN's, then a loop): asked in order of registration
// within a file; files are linked in the order of their names.
std::map<std::string, std::vector<Setup>>& table() {
  static std::map<std::string, std::vector<Setup>> t;
  return t;
}

std::map<std::string, Abilities>& said() {
  static std::map<std::string, Abilities> t;
  return t;
}

}  // namespace

Registration::Registration(const char* op, Setup setup) { table()[op].push_back(setup); }

Registration::Registration(const char* op, Setup setup, Abilities abilities)
    : Registration(op, setup) {
  said()[op] = std::move(abilities);
}

const Abilities& abilities(const std::string& op) {
  static const Abilities none;
  auto it = said().find(op);
  return it == said().end() ? none : it->second;
}

std::unique_ptr<Kernel> make_kernel(const std::string& op, const Signature& signature) {
  const ThreadScope threads;  // oneDNN divides the work when a kernel is made
  auto it = table().find(op);
  if (it == table().end()) return nullptr;
  for (Setup setup : it->second)
    if (auto kernel = setup(signature)) return kernel;
  return nullptr;
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (auto& [name, setups] : table()) names.push_back(name);
  return names;
}

}  // namespace nnl

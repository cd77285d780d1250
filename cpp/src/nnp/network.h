// SPDX-License-Identifier: Apache-2.0
// Networks of .nnp files as programs.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "nnl/parameter_files.h"
#include "nnl/program.h"

namespace nnl {

struct Message;

// The programs of the executors of a file, by their names; its networks, where it has none.
// ValueError: a network is damaged, has loops, or a function that has no rule here; the text says
// which.
std::vector<std::pair<std::string, ProgramData>> programs_of(
    const Message& file, const std::map<std::string, Spec>& parameters);

}  // namespace nnl

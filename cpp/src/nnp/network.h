// SPDX-License-Identifier: Apache-2.0
// Networks of .nnp files as programs.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "nnl/parameter_files.h"
#include "nnl/program.h"

namespace nnl {

struct ProtoMessage;

// The programs of the executors of a file, by their names; its networks, where it has none.
// Args: only: if not empty, the one executor or else network to read. streams: gets the names of
// states of random numbers, and the key of each.
// ValueError: there is none, a network is damaged, has loops, or a function that has no rule here;
// the text says which.
std::vector<std::pair<std::string, ProgramData>> programs_of(
    const ProtoMessage& file, const std::map<std::string, Spec>& parameters,
    const std::string& only, std::map<std::string, uint64_t>& streams);

}  // namespace nnl

// SPDX-License-Identifier: Apache-2.0
// Protobuf messages without the weights in them, which the protobuf package would copy.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "nnl/errors.h"
#include "nnl/file_bytes.h"

namespace nnl {

struct Split {
  // Where a byte string lies, and the number of the message it was in, among those that can hold
  // one.
  struct Run {
    uint64_t index, begin, end;
  };
  std::string rest;
  std::vector<Run> runs;
};

// Takes byte strings out of a message, those that are long and the only one of their field.
// `path` has the numbers of fields: of messages in messages, and last that of the strings.
// ValueError: a size or a number does not fit into the file.
// Source: https://protobuf.dev/programming-guides/encoding
NNL_API Split split_message(const Bytes& file, const std::vector<uint32_t>& path);

}  // namespace nnl

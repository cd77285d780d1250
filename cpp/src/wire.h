// SPDX-License-Identifier: Apache-2.0
// The binary form of protobuf messages.
// Source: https://protobuf.dev/programming-guides/encoding
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace nnl {

// Reads the fields of a message one after the other.
class Wire {
 public:
  explicit Wire(std::string_view message) : left_(message) {}

  // Moves to the next field; false at the end. ValueError: the message is damaged.
  bool next();

  // For packed numbers.
  bool more() const { return !left_.empty(); }
  uint64_t take_varint();

  uint32_t number = 0;
  enum Kind { varint, fixed64, run, fixed32 = 5 } kind = varint;
  uint64_t value = 0;      // of a number; of a fixed one its bits
  std::string_view bytes;  // of a run: text, a message or packed numbers

 private:
  std::string_view left_;
};

void put_varint(std::string& out, uint64_t value);
void put_number(std::string& out, uint32_t field, uint64_t value);
void put_run_head(std::string& out, uint32_t field, size_t size);
void put_run(std::string& out, uint32_t field, std::string_view bytes);

}  // namespace nnl

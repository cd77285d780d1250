// SPDX-License-Identifier: Apache-2.0
#include "wire.h"

#include <cstring>

#include "nnl/errors.h"

namespace nnl {

uint64_t Wire::take_varint() {
  uint64_t found = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (left_.empty()) throw ValueError("the message is cut off");
    const auto byte = static_cast<unsigned char>(left_.front());
    left_.remove_prefix(1);
    found |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return found;
  }
  throw ValueError("a number of the message is too long");
}

bool Wire::next() {
  if (left_.empty()) return false;
  const uint64_t key = take_varint();
  number = static_cast<uint32_t>(key >> 3);
  kind = static_cast<Kind>(key & 7);
  size_t size = 0;
  if (kind == varint) {
    value = take_varint();
    return true;
  }
  if (kind == run) {
    const uint64_t said = take_varint();
    if (said > left_.size()) throw ValueError("the message is cut off");
    size = static_cast<size_t>(said);
  } else if (kind == fixed64 || kind == fixed32) {
    size = kind == fixed64 ? 8 : 4;
    if (size > left_.size()) throw ValueError("the message is cut off");
    value = 0;
    std::memcpy(&value, left_.data(), size);
  } else {
    throw ValueError("a field of the message has an unknown form");
  }
  bytes = left_.substr(0, size);
  left_.remove_prefix(size);
  return true;
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_number(std::string& out, uint32_t field, uint64_t value) {
  put_varint(out, uint64_t{field} << 3 | Wire::varint);
  put_varint(out, value);
}

void put_run_head(std::string& out, uint32_t field, size_t size) {
  put_varint(out, uint64_t{field} << 3 | Wire::run);
  put_varint(out, size);
}

void put_run(std::string& out, uint32_t field, std::string_view bytes) {
  put_run_head(out, field, bytes.size());
  out += bytes;
}

}  // namespace nnl

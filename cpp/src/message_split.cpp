// SPDX-License-Identifier: Apache-2.0
#include "nnl/message_split.h"

#include <algorithm>

#include "nnl/errors.h"
#include "wire.h"

namespace nnl {
namespace {

constexpr uint64_t kLong = 256;       // bytes
constexpr size_t kMostOfNumber = 10;  // bytes

struct Field {
  uint64_t number, kind, start, value, end;
};

class Splitter {
 public:
  Splitter(const Bytes& file, const std::vector<uint32_t>& path) : file_(file), path_(path) {}

  Split split() {
    level(0, file_.size(), 0, split_.rest);
    return std::move(split_);
  }

 private:
  // Appends a message without the strings in it.
  void level(uint64_t at, uint64_t end, size_t depth, std::string& out) {
    if (depth + 1 == path_.size()) return strings(at, end, out);
    uint64_t kept = at;  // everything before is in `out`
    while (at < end) {
      const Field f = field(at, end);
      at = f.end;
      if (f.number != path_[depth] || f.kind != Wire::run) continue;
      const bool holds_strings = depth + 2 == path_.size();
      if (f.end - f.value >= kLong) {
        std::string inside;
        level(f.value, f.end, depth + 1, inside);
        out += file_.take(kept, f.start - kept);
        put_varint(out, f.number << 3 | Wire::run);
        put_varint(out, inside.size());
        out += inside;
        kept = f.end;
      }
      index_ += holds_strings;
    }
    out += file_.take(kept, end - kept);
  }

  void strings(uint64_t begin, uint64_t end, std::string& out) {
    Field found{};
    size_t count = 0;
    for (uint64_t at = begin; at < end;) {
      const Field f = field(at, end);
      at = f.end;
      if (f.number != path_.back()) continue;
      found = f;
      ++count;
    }
    if (count != 1 || found.kind != Wire::run || found.end - found.value < kLong) {
      out += file_.take(begin, end - begin);
      return;
    }
    out += file_.take(begin, found.start - begin);
    out += file_.take(found.end, end - found.end);
    split_.runs.push_back({index_, found.value, found.end});
  }

  Field field(uint64_t start, uint64_t end) {
    const std::string head = file_.take(start, std::min<uint64_t>(2 * kMostOfNumber, end - start));
    size_t i = 0;
    const uint64_t key = number(head, i, start);
    Field f{key >> 3, key & 7, start, start + i, 0};
    uint64_t size = 0;
    if (f.number == 0) throw ValueError("field number 0 at byte " + std::to_string(start));
    if (f.kind == Wire::varint) {
      number(head, i, start);
      size = start + i - f.value;
    } else if (f.kind == Wire::run) {
      size = number(head, i, start);
      f.value = start + i;
    } else if (f.kind == Wire::fixed64 || f.kind == Wire::fixed32) {
      size = f.kind == Wire::fixed64 ? 8 : 4;
    } else {
      throw ValueError("wire type " + std::to_string(f.kind) + " at byte " + std::to_string(start));
    }
    if (f.value > end || size > end - f.value)
      throw ValueError("field " + std::to_string(f.number) + " at byte " + std::to_string(start) +
                       " has " + std::to_string(size) + " bytes, its message ends at byte " +
                       std::to_string(end) + ": the file is truncated or damaged");
    f.end = f.value + size;
    return f;
  }

  static uint64_t number(const std::string& head, size_t& i, uint64_t start) {
    uint64_t value = 0;
    for (size_t k = 0; k < kMostOfNumber && i < head.size(); ++k) {
      const auto byte = static_cast<uint8_t>(head[i++]);
      value |= uint64_t{byte & 0x7Fu} << (7 * k);
      if (byte < 0x80) return value;
    }
    throw ValueError("a number at byte " + std::to_string(start) +
                     " does not end: the file is truncated or damaged");
  }

  FileBytes file_;
  const std::vector<uint32_t>& path_;
  Split split_;
  uint64_t index_ = 0;  // of messages that can hold strings
};

}  // namespace

Split split_message(const Bytes& file, const std::vector<uint32_t>& path) {
  return Splitter(file, path).split();
}

}  // namespace nnl

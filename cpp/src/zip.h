// SPDX-License-Identifier: Apache-2.0
// Zip archives, read: members that are stored or deflated, as .nnp files have them.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nnl/errors.h"

namespace nnl {

class Zip {
 public:
  struct Member {
    std::string name;
    std::string_view packed;
    bool deflated;
    uint64_t size;
    uint32_t crc;
  };

  // Over the bytes of a file, which must stay there. ValueError: they are no archive, or damaged.
  // Source: PKWARE, .ZIP File Format Specification, sections 4.3.6 to 4.3.16.
  explicit Zip(std::string_view archive);

  const std::vector<Member>& members() const { return members_; }

  // The content of a member, from `start` of `out` on, which has room for its size. ValueError: it
  // is damaged.
  static void unpack(const Member& member, char* out);

 private:
  std::vector<Member> members_;
};

// Unpacks what was deflated. ValueError: it is damaged, or not of exactly `size` bytes.
// Source: RFC 1951.
NNL_API void inflate(std::string_view packed, char* out, size_t size);

}  // namespace nnl

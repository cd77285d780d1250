// SPDX-License-Identifier: Apache-2.0
#include "zip.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "nnl/crc32.h"
#include "nnl/errors.h"

namespace nnl {
namespace {

constexpr uint64_t most_ratio = 1032;  // of deflate: one bit for 258 bytes, nearly
constexpr int longest_code = 15;       // bits

[[noreturn]] void damaged() { throw ValueError("the packed data are damaged"); }

class Bits {
 public:
  explicit Bits(std::string_view data) : data_(data) {}

  unsigned take(int n) {
    while (count_ < n) {
      if (data_.empty()) damaged();
      held_ |= uint32_t{static_cast<unsigned char>(data_.front())} << count_;
      data_.remove_prefix(1);
      count_ += 8;
    }
    const unsigned found = held_ & ((1u << n) - 1);
    held_ >>= n, count_ -= n;
    return found;
  }

  // Whole bytes, from the next whole one on.
  std::string_view bytes(size_t n) {
    held_ = 0, count_ = 0;
    if (n > data_.size()) damaged();
    const std::string_view found = data_.substr(0, n);
    data_.remove_prefix(n);
    return found;
  }

 private:
  std::string_view data_;
  uint32_t held_ = 0;
  int count_ = 0;
};

// A Huffman code, given by the lengths of its words.
class Code {
 public:
  Code(const uint8_t* lengths, size_t n) : symbols_(n) {
    for (size_t i = 0; i < n; ++i) ++counts_[lengths[i]];
    counts_[0] = 0;
    int left = 1;
    std::array<uint16_t, longest_code + 2> at{};
    for (int bits = 1; bits <= longest_code; ++bits) {
      left = 2 * left - counts_[static_cast<size_t>(bits)];
      if (left < 0) damaged();  // more words than there are
      at[static_cast<size_t>(bits) + 1] =
          static_cast<uint16_t>(at[static_cast<size_t>(bits)] + counts_[static_cast<size_t>(bits)]);
    }
    for (size_t i = 0; i < n; ++i)
      if (lengths[i]) symbols_[at[lengths[i]]++] = static_cast<uint16_t>(i);
  }

  unsigned take(Bits& in) const {
    int code = 0, first = 0, index = 0;
    for (size_t bits = 1; bits <= longest_code; ++bits) {
      code |= static_cast<int>(in.take(1));
      const int count = counts_[bits];
      if (code - count < first) return symbols_[static_cast<size_t>(index + code - first)];
      index += count, first = 2 * (first + count), code *= 2;
    }
    damaged();
  }

 private:
  std::array<uint16_t, longest_code + 1> counts_{};
  std::vector<uint16_t> symbols_;
};

constexpr uint16_t length_from[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                    31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
constexpr uint8_t length_bits[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                   2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
constexpr uint16_t distance_from[] = {
    1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
    193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
constexpr uint8_t distance_bits[] = {0, 0, 0, 0, 1, 1, 2, 2,  3,  3,  4,  4,  5,  5,  6,
                                     6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13};

class Inflater {
 public:
  Inflater(std::string_view packed, char* out, size_t size) : in_(packed), out_(out), size_(size) {}

  void run() {
    bool last = false;
    while (!last) {
      last = in_.take(1);
      switch (in_.take(2)) {
        case 0:
          stored();
          break;
        case 1:
          fixed();
          break;
        case 2:
          dynamic();
          break;
        default:
          damaged();
      }
    }
    if (at_ != size_) damaged();
  }

 private:
  void stored() {
    const std::string_view head = in_.bytes(4);
    uint16_t size = 0, complement = 0;
    std::memcpy(&size, head.data(), 2), std::memcpy(&complement, head.data() + 2, 2);
    if ((size ^ complement) != 0xffff || size > size_ - at_) damaged();
    const std::string_view data = in_.bytes(size);
    std::copy(data.begin(), data.end(), out_ + at_);
    at_ += size;
  }

  void fixed() {
    std::array<uint8_t, 288> lengths;
    std::fill_n(lengths.begin(), 144, 8), std::fill_n(lengths.begin() + 144, 112, 9);
    std::fill_n(lengths.begin() + 256, 24, 7), std::fill_n(lengths.begin() + 280, 8, 8);
    std::array<uint8_t, 30> distances;
    distances.fill(5);
    coded(Code(lengths.data(), lengths.size()), Code(distances.data(), distances.size()));
  }

  void dynamic() {
    const size_t n = in_.take(5) + 257, m = in_.take(5) + 1, k = in_.take(4) + 4;
    if (n > 286 || m > 30) damaged();
    static const uint8_t order[] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                    11, 4,  12, 3, 13, 2, 14, 1, 15};
    std::array<uint8_t, 19> of_lengths{};
    for (size_t i = 0; i < k; ++i) of_lengths[order[i]] = static_cast<uint8_t>(in_.take(3));
    const Code code(of_lengths.data(), of_lengths.size());
    std::array<uint8_t, 316> lengths{};
    for (size_t i = 0; i < n + m;) {
      const unsigned symbol = code.take(in_);
      if (symbol < 16) {
        lengths[i++] = static_cast<uint8_t>(symbol);
        continue;
      }
      if (symbol == 16 && i == 0) damaged();
      const uint8_t again = symbol == 16 ? lengths[i - 1] : 0;
      const size_t times = symbol == 16   ? 3 + in_.take(2)
                           : symbol == 17 ? 3 + in_.take(3)
                                          : 11 + in_.take(7);
      if (times > n + m - i) damaged();
      std::fill_n(lengths.begin() + static_cast<long>(i), times, again);
      i += times;
    }
    coded(Code(lengths.data(), n), Code(lengths.data() + n, m));
  }

  void coded(const Code& symbols, const Code& distances) {
    for (;;) {
      const unsigned symbol = symbols.take(in_);
      if (symbol == 256) return;
      if (symbol < 256) {
        if (at_ == size_) damaged();
        out_[at_++] = static_cast<char>(symbol);
        continue;
      }
      if (symbol > 285) damaged();
      const size_t length = length_from[symbol - 257] + in_.take(length_bits[symbol - 257]);
      const unsigned code = distances.take(in_);
      const size_t back = distance_from[code] + in_.take(distance_bits[code]);
      if (back > at_ || length > size_ - at_) damaged();
      for (size_t i = 0; i < length; ++i, ++at_) out_[at_] = out_[at_ - back];
    }
  }

  Bits in_;
  char* out_;
  size_t size_, at_ = 0;
};

template <class T>
T number(std::string_view data, size_t at) {
  T value;
  if (at > data.size() || sizeof value > data.size() - at)
    throw ValueError("the archive is cut off");
  std::memcpy(&value, data.data() + at, sizeof value);
  return value;
}

}  // namespace

void inflate(std::string_view packed, char* out, size_t size) { Inflater(packed, out, size).run(); }

Zip::Zip(std::string_view archive) {
  // The end of the directory, before a comment that may follow.
  const std::string_view mark("PK\5\6", 4);
  const size_t end = archive.rfind(mark);
  if (end == archive.npos) throw ValueError("it is no zip archive, or cut off");
  const size_t count = number<uint16_t>(archive, end + 10);
  size_t at = number<uint32_t>(archive, end + 16);
  if (count == 0xffff || at == 0xffffffff)
    throw ValueError("archives of more than 4 GiB are not read");
  uint64_t left = archive.size();  // members do not overlap
  for (size_t i = 0; i < count; ++i) {
    if (number<uint32_t>(archive, at) != 0x02014b50) throw ValueError("its directory is damaged");
    const auto flags = number<uint16_t>(archive, at + 8);
    const auto method = number<uint16_t>(archive, at + 10);
    Member m;
    m.crc = number<uint32_t>(archive, at + 16);
    const uint64_t packed = number<uint32_t>(archive, at + 20);
    m.size = number<uint32_t>(archive, at + 24);
    const size_t name = number<uint16_t>(archive, at + 28);
    const size_t more = number<uint16_t>(archive, at + 30);
    const size_t comment = number<uint16_t>(archive, at + 32);
    const size_t start = number<uint32_t>(archive, at + 42);
    if (at + 46 + name > archive.size()) throw ValueError("its directory is damaged");
    m.name = archive.substr(at + 46, name);
    at += 46 + name + more + comment;
    m.deflated = method == 8;
    if ((method != 0 && method != 8) || flags & 1)
      throw ValueError("'" + m.name + "' is packed in a way that is not read");
    const size_t data = start + 30 + size_t{number<uint16_t>(archive, start + 26)} +
                        number<uint16_t>(archive, start + 28);
    if (number<uint32_t>(archive, start) != 0x04034b50 || data > archive.size() ||
        packed > archive.size() - data || packed > left || m.size / most_ratio > packed ||
        (!m.deflated && m.size != packed))
      throw ValueError("'" + m.name + "' is not in the archive");
    left -= packed;
    m.packed = archive.substr(data, packed);
    members_.push_back(std::move(m));
  }
}

void Zip::unpack(const Member& member, char* out) {
  try {
    if (member.deflated) {
      inflate(member.packed, out, member.size);
    } else {
      std::copy(member.packed.begin(), member.packed.end(), out);
    }
  } catch (const ValueError& e) {
    throw ValueError("'" + member.name + "': " + e.what());
  }
  if (crc32(out, member.size) != member.crc)
    throw ValueError("'" + member.name + "' is damaged: it has another CRC-32 than it had");
}

}  // namespace nnl

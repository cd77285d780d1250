// SPDX-License-Identifier: Apache-2.0
// How HDF5 files describe types of numbers, for their reader and their writer.
// Source: HDF5 File Format Specification Version 1.1, section IV.A.2.d.
#pragma once
#include <cstdint>
#include <string>

namespace nnl::hdf5 {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;

constexpr int deepest = 64;  // of groups in groups

// Numbers in the order of bytes of HDF5 files and of every processor that the library is built for.
template <class... T>
std::string packed(T... values) {
  std::string out;
  (out.append(reinterpret_cast<const char*>(&values), sizeof values), ...);
  return out;
}

inline std::string integer(u32 size, bool is_signed) {
  return packed(u8{0x10}, u8(8 * is_signed), u16{0}, size, u16{0}, u16(8 * size));
}

inline std::string real(u32 size, u8 exponent, u8 mantissa) {
  return packed(u8{0x11}, u8{0x20}, u8(8 * size - 1), u8{0}, size, u16{0}, u16(8 * size), mantissa,
                exponent, u8{0}, mantissa, (u32{1} << (exponent - 1)) - 1);
}

// How h5py writes a bool: one byte, with names for its values.
inline std::string boolean() {
  return packed(u8{0x18}, u8{2}, u16{0}, u32{1}) + integer(1, true) +
         std::string("FALSE\0\0\0TRUE\0\0\0\0\0\1", 18);
}

}  // namespace nnl::hdf5

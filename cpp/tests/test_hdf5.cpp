// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "check.h"
#include "damage.h"
#include "nnl/hdf5.h"

namespace {

template <class... T>
std::string packed(T... values) {
  std::string out;
  (out.append(reinterpret_cast<const char*>(&values), sizeof values), ...);
  return out;
}

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;

std::string message(u16 kind, const std::string& data) {
  return packed(kind, static_cast<u16>(data.size()), u8{0}, u8{0}, u16{0}) + data;
}

std::string header(const std::string& messages) {
  return packed(u8{1}, u8{0}, u16{4}, u32{1}, static_cast<u32>(messages.size()), u32{0}) + messages;
}

// A file with one array, "w" of 2 x 3 float32, beside the integer "n".
std::string file() {
  const u64 root = 96, tree = 136, heap = 176, names = 208, table = 224, array = 272, data = 480;
  std::string out = "\x89HDF\r\n\x1a\n" + packed(u32{0}, u8{0}, u8{8}, u8{8}, u8{0});
  out += packed(u16{4}, u16{16}, u32{0}, u64{0}, ~u64{0}, u64{512}, ~u64{0}, u64{0}, root);
  out.resize(root);
  out += header(message(0x11, packed(tree, heap)));
  out.resize(tree);
  out += "TREE" + packed(u8{0}, u8{0}, u16{1}, ~u64{0}, ~u64{0}, u64{0}, table);
  out.resize(heap);
  out += "HEAP" + packed(u32{0}, u64{16}, u64{0}, names);
  out.resize(names);
  out += std::string("\0\0\0\0\0\0\0\0w", 9);
  out.resize(table);
  out += "SNOD" + packed(u8{1}, u8{0}, u16{1}, u64{8}, array, u32{0}, u32{0}, u64{0}, u64{0});
  out.resize(array);
  const std::string integer = packed(u8{0x10}, u8{8}, u16{0}, u32{2}, u16{0}, u16{16}, u32{0});
  out +=
      header(message(0x1, packed(u8{1}, u8{2}, u8{0}, u8{0}, u32{0}, u64{2}, u64{3})) +
             message(0x3, packed(u8{0x11}, u8{0x20}, u8{31}, u8{0}, u32{4}, u16{0}, u16{32}, u8{23},
                                 u8{8}, u8{0}, u8{23}, u32{127}, u32{0})) +
             message(0x8, packed(u8{3}, u8{1}, data, u64{24}, u32{0}, u16{0})) +
             message(0xC, packed(u8{1}, u8{0}, u16{2}, u16{16}, u16{8}, 'n', '\0', u16{0}, u32{0}) +
                              integer +
                              packed(u8{1}, u8{0}, u16{0}, u32{0}, int16_t{-5}, u16{0}, u32{0})));
  CHECK(out.size() <= data);
  out.resize(512);
  return out;
}

nnl::Bytes memory(const std::string& x) {
  return {reinterpret_cast<const uint8_t*>(x.data()), -1, 0, x.size()};
}

void an_array_is_found_in_memory_and_in_a_part_of_a_file() {
  const std::string x = file(), before = "something before";
  std::FILE* f = std::tmpfile();
  CHECK(f && std::fwrite((before + x).data(), 1, before.size() + x.size(), f) && !std::fflush(f));
  for (const nnl::Bytes& bytes : {memory(x), nnl::Bytes{nullptr, ::fileno(f), 16, x.size()}}) {
    const std::vector<nnl::Hdf5Array> found = nnl::hdf5_arrays(bytes);
    CHECK(found.size() == 1 && found[0].name == "w" && found[0].dtype == "<f4");
    CHECK(found[0].shape == (nnl::Shape{2, 3}) && found[0].start == 480);
    CHECK(found[0].attributes.size() == 1 && found[0].attributes[0].first == "n");
    CHECK(found[0].attributes[0].second == -5);
  }
  CHECK_ERROR(nnl::hdf5_arrays({nullptr, ::fileno(f), 16, x.size() + 1000}), "");
  std::fclose(f);
}

// What the sanitizers watch: no change makes it read or claim anything outside.
void damaged_files_stay_inside_of_themselves() {
  const std::string good = file();
  nnl::test::Draw any;
  int found = 0;
  for (int round = 0; round < 50000; ++round) {
    std::string x = good;
    for (size_t k = 0; k <= any(3); ++k) {
      char& byte = x[any(480)];
      const char choices[] = {'\0', '\xff', '\x7f', char(byte + 1), char(byte ^ (1 << any(8)))};
      byte = choices[any(sizeof choices)];
    }
    if (any(8) == 0) x.resize(any(x.size()) + 1);
    try {
      for (const nnl::Hdf5Array& a : nnl::hdf5_arrays(memory(x))) {
        uint64_t size = static_cast<uint64_t>(a.dtype.back() - '0');
        for (int64_t n : a.shape) size *= static_cast<uint64_t>(n);
        CHECK(size <= x.size() && a.start <= x.size() - size);
        ++found;
      }
    } catch (const nnl::ValueError&) {
    }
  }
  CHECK(found > 1000);
}

}  // namespace

int main() {
  an_array_is_found_in_memory_and_in_a_part_of_a_file();
  damaged_files_stay_inside_of_themselves();
}

// SPDX-License-Identifier: Apache-2.0
// Files of parameters come back as they were written; damaged ones end in an error that names them.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "check.h"
#include "nnl/parameter_files.h"

using namespace nnl;
using namespace nnl::test;

namespace {

const char* const kinds[] = {".safetensors", ".h5", ".protobuf"};

std::vector<StoredParameter> some(const std::vector<float>& numbers) {
  std::vector<StoredParameter> found;
  for (int i = 0; i < 40; ++i)
    found.push_back({"layer" + std::to_string(i % 13) + "/w" + std::to_string(i),
                     floats({i % 3, 4}), numbers.data() + i, i % 2 == 0});
  return found;
}

void what_is_written_is_read(const std::string& path) {
  const auto values = numbers(100, 1);
  const auto want = some(values);
  write_parameters(path, want);
  const StoredParameters got = read_parameters(path);
  CHECK(got.all.size() == want.size());
  for (const StoredParameter& p : got.all) {
    size_t i = 0;
    while (i < want.size() && want[i].name != p.name) ++i;
    CHECK(i < want.size() && p.spec.text() == want[i].spec.text());
    CHECK(!p.spec.size() || std::memcmp(p.data, want[i].data, p.spec.bytes()) == 0);
    CHECK(path == "p.safetensors" || p.need_grad == want[i].need_grad);
  }
}

std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void damaged_files_are_refused_by_name(const std::string& path) {
  const std::string good = bytes_of_file(path);
  uint32_t state = 1;
  const auto draw = [&](size_t n) {
    state = state * 1664525u + 1013904223u;
    return static_cast<size_t>(state >> 8) % n;
  };
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    std::string bytes = good;
    for (size_t k = 0, n = 1 + draw(3); k < n; ++k) {
      const size_t at = draw(std::min<size_t>(bytes.size(), 4000));
      switch (draw(3)) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << draw(8)));
          break;
        case 1:
          bytes.resize(at + 1);
          break;
        default:
          bytes.erase(at, 1 + draw(20));
          bytes += "x";
      }
    }
    std::ofstream(path, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    try {
      double sum = 0;
      for (const StoredParameter& p : read_parameters(path).all)
        for (size_t i = 0; i < p.spec.bytes(); ++i) sum += static_cast<const char*>(p.data)[i];
      CHECK(sum < 1e9);
    } catch (const ValueError& e) {
      ++refused;
      CHECK(std::string(e.what()).find(path) == 0);
    }
  }
  CHECK(refused > 200);
}

void wrong_names_are_told() {
  CHECK_ERROR(read_parameters("p.npz"), "p.npz: ");
  CHECK_ERROR(write_parameters("p", {}), "p: files of parameters are .safetensors, .h5 and");
  const auto values = numbers(4, 1);
  const StoredParameter p{"a", floats({4}), values.data()};
  CHECK_ERROR(write_parameters("q.h5", {p, p}), "q.h5: the name 'a' is in an array, or there");
  CHECK(bytes_of_file("q.h5").empty());
}

}  // namespace

int main() {
  for (const char* kind : kinds) {
    const std::string path = std::string("p") + kind;
    what_is_written_is_read(path);
    damaged_files_are_refused_by_name(path);
    std::remove(path.c_str());
  }
  wrong_names_are_told();
}

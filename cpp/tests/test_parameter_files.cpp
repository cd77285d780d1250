// SPDX-License-Identifier: Apache-2.0
// Files of parameters come back as they were written; damaged ones end in an error that names them.
//
// With arguments: reads damaged copies of these files, in their places.
#include <cstdio>
#include <cstring>

#include "check.h"
#include "damage.h"
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

int refused(const std::string& path) {
  return refused_copies(path, 4000, [&] {
    double sum = 0;
    for (const StoredParameter& p : read_parameters(path).all)
      for (size_t i = 0; i < p.spec.bytes(); ++i) sum += static_cast<const char*>(p.data)[i];
    CHECK(sum < 1e9);
  });
}

void wrong_names_are_told() {
  CHECK_ERROR(read_parameters("p.npz"), "p.npz: No such file");
  CHECK_ERROR(write_parameters("p", {}), "p: files of parameters are .safetensors, .h5 and");
  const auto values = numbers(4, 1);
  const StoredParameter p{"a", floats({4}), values.data()};
  const StoredParameter large{"w", floats({600'000'000}), nullptr, true};
  CHECK_ERROR(write_parameters("p.protobuf", {large}),
              "bytes of numbers, and a protobuf message has at most 2147483647: .h5 and");
  CHECK_ERROR(write_parameters("q.h5", {p, p}), "q.h5: the name 'a' is in an array, or there");
  std::string deep = "a";
  for (int i = 0; i < 63; ++i) deep += "/a";
  const StoredParameter q{deep, p.spec, p.data}, r{deep + "/a", p.spec, p.data};
  CHECK_ERROR(write_parameters("q.h5", {r}), "/a' is in too many groups");
  CHECK(bytes_of_file("q.h5").empty());
  write_parameters("q.h5", {q});
  CHECK(read_parameters("q.h5").all.at(0).name == deep);
  write_file("q.h5", "no HDF5");
  CHECK_ERROR(read_parameters("q.h5"), "q.h5: damaged, or HDF5 as h5py does not write it: ");
  std::remove("q.h5");
}

}  // namespace

int main(int count, char** paths) {
  for (int i = 1; i < count; ++i)
    std::printf("%s: %d of 1000 refused\n", paths[i], refused(paths[i]));
  if (count > 1) return 0;
  for (const char* kind : kinds) {
    const std::string path = std::string("p") + kind;
    what_is_written_is_read(path);
    CHECK(refused(path) > 200);
    std::remove(path.c_str());
  }
  wrong_names_are_told();
}

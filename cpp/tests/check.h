// SPDX-License-Identifier: Apache-2.0
// Facts that tests state; the first that does not hold ends the program.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "nnl/elementwise.h"
#include "nnl/errors.h"
#include "nnl/kernel.h"

namespace nnl::test {

inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::exit(1);
}

#define CHECK(fact) ((fact) ? void() : nnl::test::fail(__FILE__, __LINE__, #fact))

// That a statement throws ValueError with this text in it.
#define CHECK_ERROR(statement, text)                                               \
  try {                                                                            \
    statement;                                                                     \
    nnl::test::fail(__FILE__, __LINE__, "no error: " #statement);                  \
  } catch (const nnl::ValueError& e) {                                             \
    if (std::string(e.what()).find(text) == std::string::npos)                     \
      nnl::test::fail(__FILE__, __LINE__, std::string("error says: ") + e.what()); \
  }

// Numbers in [-1, 1) that are the same everywhere.
inline std::vector<float> numbers(int64_t n, uint32_t seed) {
  std::vector<float> x(static_cast<size_t>(n));
  uint32_t state = seed * 2654435761u + 1u;
  for (float& v : x) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<float>(static_cast<int32_t>(state)) / 2147483648.0f;
  }
  return x;
}

// The number of an instruction of element-wise programs.
inline int64_t code_of(const std::string& name) {
  const auto codes = elementwise_codes();
  const auto at = std::find_if(codes.begin(), codes.end(),
                               [&](const auto& code) { return code.first == name; });
  CHECK(at != codes.end());
  return at - codes.begin();
}

inline Spec floats(Shape shape) { return {std::move(shape), DType::f32, Layout::plain}; }

inline Signature signature(std::unordered_map<std::string, Attribute> attributes,
                           std::vector<Spec> in, std::vector<Spec> out) {
  Signature s;
  s.attributes = Attributes(std::move(attributes));
  s.in_given.assign(in.size(), true);
  s.in = std::move(in);
  s.out = std::move(out);
  return s;
}

}  // namespace nnl::test

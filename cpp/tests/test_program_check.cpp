// SPDX-License-Identifier: Apache-2.0
// Programs whose steps do not give what they say are refused before any kernel is made.
//
// With arguments: runs the files of programs that these name, each of which may be damaged, and
// prints the name of each before. It must end well, with an error of the library or without.
#include <cstdio>
#include <cstring>
#include <new>

#include "check.h"
#include "nnl/model.h"
#include "nnl/program.h"
#include "nnl/rules.h"

using namespace nnl;
using namespace nnl::test;

namespace {

ProgramValue value(int number, Shape shape, DType type = DType::f32) {
  ProgramValue v;
  v.spec = {std::move(shape), type};
  v.root = number;
  return v;
}

// y = gather(x, i), of which each test damages something.
ProgramData gathers() {
  ProgramData p;
  p.values = {{}, value(1, {5, 3}), value(2, {4}, DType::i64), value(3, {4, 3})};
  p.values[1].role = p.values[2].role = ProgramValue::Role::input;
  ProgramStep step;
  step.op = "gather", step.label = "gather in tok (a.py:1)";
  step.attributes = {{"axis", int64_t{0}}, {"batch_dims", int64_t{0}}};
  step.in = {1, 2}, step.out = {3};
  p.steps = {step};
  return p;
}

void steps_must_give_what_they_say() {
  check(gathers());
  ProgramData p = gathers();
  p.values[3].spec.shape = {5, 3};
  CHECK_ERROR(check(p), "gather in tok (a.py:1): gather gives float32[4, 3], not");
  p = gathers();
  p.values[3].spec.dtype = DType::i32;
  CHECK_ERROR(check(p), "gather gives float32[4, 3], not int32[4, 3]");
  p = gathers();
  p.values[3].spec.dtype = DType::bf16;  // kernels round as they write
  check(p);
  p.steps[0].attributes["axis"] = int64_t{2};
  CHECK_ERROR(check(p), "gather: axis is 2, wanted an axis in [0, 2) for x float32[5, 3]");
  p = gathers();
  p.steps[0].out = {3, 3};
  CHECK_ERROR(check(p), "value 3 is made twice");
}

void results_have_memory_of_their_own() {
  ProgramData p = gathers();
  p.values[1].spec.shape = {4, 6}, p.values[3].root = 1;
  CHECK_ERROR(check(p), "value 3 is other values' memory");
  p = gathers();
  p.steps[0].view = true, p.values[3].root = 3;
  CHECK_ERROR(check(p), "value 3 is other values' memory");
  p = gathers();
  p.values[2].root = 3;
  CHECK_ERROR(check(p), "value 2 is no view of its root");
}

void elementwise_programs_fit_their_arrays() {
  ProgramData p;
  p.values = {{}, value(1, {2, 3}), value(2, {2, 3})};
  ProgramStep step;
  step.op = step.label = "relu";
  step.in = {1}, step.out = {2};
  step.code = {code_of("relu"), 0, 0, 0}, step.shapes = {{2, 3}};
  p.steps = {step};
  check(p);
  p.steps[0].code[1] = 1;
  CHECK_ERROR(check(p), "relu reads the value 1 of 1");
  p.steps[0].op = "an op of another version";
  CHECK_ERROR(check(p), "relu reads the value 1 of 1");
  p.steps[0].code[1] = -1;
  CHECK_ERROR(check(p), "relu reads the value -1 of 1");
  p.steps[0].code = {999, 0, 0, 0};
  CHECK_ERROR(check(p), "code has the unknown instruction 999");
  p.steps[0].code = step.code, p.steps[0].shapes = {{3, 3}};
  CHECK_ERROR(check(p), "reshape: x float32[2, 3], wanted 6 elements in the result");
}

void fused_elementwise_programs_give_something() {
  const std::vector<int64_t> none;
  const std::vector<double> no_numbers;
  ProgramData p;
  p.values = {{}, value(1, {2, 3})};
  p.steps.resize(1);
  p.steps[0].op = p.steps[0].label = "fused_elementwise", p.steps[0].in = {1};
  p.steps[0].attributes = {{"code", std::vector<int64_t>{code_of("relu"), 0, 0, 0}},
                           {"constants", no_numbers},
                           {"outputs", none},
                           {"shape", Shape{2, 3}},
                           {"shapes", none},
                           {"reductions", none},
                           {"axes", none},
                           {"keep_dims", none},
                           {"scales", no_numbers}};
  CHECK_ERROR(check(p), "outputs is empty");
}

// Bytes that are small numbers in every type, and sometimes no sound ones.
void fill(const Tensor& x, uint32_t seed) {
  auto* bytes = static_cast<uint8_t*>(x.data());
  const size_t width = bytes_of(x.spec().dtype);
  for (size_t i = 0; i < x.spec().bytes(); i += width) {
    seed = seed * 1664525u + 1013904223u;
    const int64_t n = seed >> 24 < 8 ? INT64_MIN : static_cast<int64_t>(seed >> 29);
    const float real = seed >> 24 < 8 ? 0.0f / 0.0f : static_cast<float>(n) * 0.5f;
    if (x.spec().dtype == DType::f32) {
      std::memcpy(bytes + i, &real, 4);
    } else if (x.spec().dtype == DType::boolean) {
      bytes[i] = n & 1;
    } else {
      std::memcpy(bytes + i, &n, width);
    }
  }
}

void run(const char* path) {
  std::printf("%s ", path);
  std::fflush(stdout);
  try {
    Model model(path);
    for (uint32_t round = 0; round < 2; ++round) {
      for (const Tensor& x : model.inputs()) fill(x, round);
      model.run();
    }
    std::printf("ran\n");
  } catch (const ValueError& e) {
    std::printf("refused: %s\n", e.what());
  } catch (const std::bad_alloc&) {
    std::printf("refused: no memory\n");
  }
}

}  // namespace

int main(int count, char** paths) {
  for (int i = 1; i < count; ++i) run(paths[i]);
  if (count > 1) return 0;
  steps_must_give_what_they_say();
  results_have_memory_of_their_own();
  elementwise_programs_fit_their_arrays();
  fused_elementwise_programs_give_something();
}

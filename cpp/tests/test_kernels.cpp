// SPDX-License-Identifier: Apache-2.0
// Kernels as a C++ program meets them. Whether they compute what the definitions say is tested from
// Python; here every array has exactly its size, so that the sanitizers see a step too far.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "check.h"
#include "nnl/plan.h"
#include "nnl/threads.h"

using namespace nnl;
using namespace nnl::test;

namespace {

// Arrays and scratch memory of one kernel, each allocated by itself.
struct Run {
  explicit Run(const std::string& op, const Signature& s) : s_(s), kernel(make_kernel(op, s)) {
    if (!kernel) fail(__FILE__, __LINE__, op + " declines");
    for (const Spec& x : s.in) in.emplace_back(x.bytes());
    for (const Spec& y : s.out) out.emplace_back(y.bytes());
    for (size_t i = 0; i < s.in.size(); ++i) {
      if (s.in[i].dtype != DType::f32) continue;
      const auto x = numbers(s.in[i].size(), static_cast<uint32_t>(i + 1));
      std::copy(x.begin(), x.end(), floats_of(in[i]));
    }
  }

  static float* floats_of(std::vector<char>& x) { return reinterpret_cast<float*>(x.data()); }

  void run() {
    std::vector<void*> i, o;
    for (size_t k = 0; k < in.size(); ++k) i.push_back(s_.given(k) ? in[k].data() : nullptr);
    for (auto& y : out) o.push_back(y.data());
    const Memory scratch(kernel->workspace());
    // what is left in scratch memory must not matter
    std::memset(static_cast<void*>(scratch.data()), 0xff, scratch.bytes());
    kernel->run({i.data(), o.data(), scratch.data()});
  }

  Signature s_;
  std::unique_ptr<Kernel> kernel;
  std::vector<std::vector<char>> in, out;
};

void names_are_sorted_and_unknown_ones_have_no_kernel() {
  const auto names = kernel_names();
  CHECK(std::is_sorted(names.begin(), names.end()));
  for (const char* name : {"affine", "batch_matmul", "lstm", "adam_update", "attention"})
    CHECK(std::binary_search(names.begin(), names.end(), name));
  CHECK(!make_kernel("no such op", {}));
}

void what_is_not_supported_is_declined() {
  Spec x = floats({2, 3}), w = floats({3, 4}), y = floats({2, 4});
  x.dtype = DType::f64;
  CHECK(!make_kernel("affine", signature({{"base_axis", int64_t{1}}}, {x, w}, {y})));
}

void attributes_name_themselves_in_errors() {
  const std::vector<Spec> in{floats({2, 3}), floats({3, 4})}, out{floats({2, 4})};
  CHECK_ERROR(make_kernel("affine", signature({}, in, out)), "attribute 'base_axis' is missing");
  CHECK_ERROR(make_kernel("affine", signature({{"base_axis", std::string("1")}}, in, out)),
              "attribute 'base_axis' has another type");
}

void at_least_one_thread_is_wanted() {
  CHECK_ERROR(set_threads(0), "set_threads: n is 0, wanted 1 or more");
}

void products_of_all_sizes_stay_inside_their_arrays() {
  for (int64_t m : {1, 5, 6, 7, 65})
    for (int64_t k : {0, 1, 17, 300})
      for (int64_t n : {1, 15, 16, 63, 130}) {
        const Attribute one = int64_t{1};
        Run r("affine", signature({{"base_axis", one}},
                                  {floats({m, k}), floats({k, n}), floats({n})}, {floats({m, n})}));
        r.run();
        const float *x = Run::floats_of(r.in[0]), *w = Run::floats_of(r.in[1]);
        const float* y = Run::floats_of(r.out[0]);
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < n; ++j) {
            double sum = Run::floats_of(r.in[2])[j];
            for (int64_t p = 0; p < k; ++p) sum += static_cast<double>(x[i * k + p]) * w[p * n + j];
            CHECK(std::fabs(y[i * n + j] - sum) < 1e-4);
          }
      }
}

Signature attention(int64_t heads, int64_t queries, int64_t keys, int64_t d) {
  return signature({{"scale", 0.5}, {"causal", true}},
                   {floats({2, heads, queries, d}), floats({2, heads, keys, d}),
                    floats({2, heads, keys, d}), floats({queries, keys})},
                   {floats({2, heads, queries, d}), floats({2, heads, queries})});
}

Signature lstm(int64_t steps, int64_t batch, int64_t size, int64_t n) {
  const int64_t layers = 2, directions = 2;
  const Spec state = floats({layers, directions, batch, n});
  Signature s = signature(
      {{"num_layers", layers}, {"bidirectional", true}, {"dropout", 0.0}, {"training", true}},
      {floats({steps, batch, size}),
       state,
       state,
       floats({directions, 4, n, size + n}),
       floats({layers - 1, directions, 4, n, 3 * n}),
       floats({layers, directions, 4, n}),
       {{2}, DType::u64, Layout::plain}},
      {floats({steps, batch, 2 * n}),
       state,
       state,
       floats({layers - 1, steps, batch, 2 * n}),
       floats({layers, directions, steps, batch, 4 * n}),
       floats({layers, directions, steps, batch, n}),
       {{0}, DType::boolean, Layout::plain}});
  return s;
}

Signature lars(int64_t n) {
  const Spec w = floats({n});
  return signature({{"momentum", 0.9}, {"coefficient", 0.1}, {"eps", 1e-6}, {"wd", 0.1}},
                   {w, w, w, {{}, DType::i64, Layout::plain}, {{}, DType::f64, Layout::plain}},
                   {w});
}

bool close(const float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    if (!(std::fabs(x[i] - y[i]) < 1e-5f)) return false;
  return true;
}

void results_do_not_depend_on_the_number_of_threads() {
  const int before = threads();
  const std::pair<const char*, Signature> cases[] = {
      {"attention", attention(3, 131, 270, 33)},
      {"attention", attention(1, 1, 1, 1)},
      {"lstm", lstm(7, 19, 13, 37)},
      {"lars_update", lars(70001)},
  };
  for (const auto& [op, s] : cases) {
    std::vector<std::vector<char>> first;
    for (int n : {1, 2, 5}) {
      set_threads(n);
      Run r(op, s);
      r.run();
      if (first.empty()) first = r.out;
      if (std::string(op) == "lstm")  // oneDNN may divide its sums among threads
        CHECK(close(Run::floats_of(r.out[0]), Run::floats_of(first[0]), s.out[0].size()));
      else
        CHECK(r.out == first);
    }
  }
  set_threads(before);
}

// Bytes of a bool that are neither 0 nor 1, as only files have them, are not zero.
void any_byte_of_a_mask_counts_once() {
  const Spec mask{{4}, DType::boolean, Layout::plain};
  Run r("bool_gather",
        signature({{"count", int64_t{2}}}, {floats({4, 3}), mask}, {floats({2, 3})}));
  r.in[1] = {0, 2, 0, 'x'};
  r.run();
  CHECK(std::memcmp(r.out[0].data() + 12, r.in[0].data() + 36, 12) == 0);
  r.in[1] = {1, 2, 0, 'x'};
  CHECK_ERROR(r.run(), "mask has 3 elements that are not zero, wanted 2");
}

void images_are_moved_to_places_inside() {
  const double inf = HUGE_VAL;
  for (const char* name : {"angle", "distortion", "max_scale"}) {
    std::unordered_map<std::string, Attribute> attributes = {{"pad", std::vector<int64_t>{0, 0}},
                                                             {"min_scale", 1.0},
                                                             {"max_scale", 1.0},
                                                             {"angle", 0.0},
                                                             {"aspect_ratio", 1.0},
                                                             {"distortion", 0.0},
                                                             {"brightness", 0.0},
                                                             {"contrast", 1.0},
                                                             {"contrast_center", 0.0},
                                                             {"noise", 0.0},
                                                             {"flip_lr", false},
                                                             {"flip_ud", false},
                                                             {"brightness_each", false},
                                                             {"contrast_each", false}};
    attributes[name] = inf;
    const Spec rng{{2}, DType::u64, Layout::plain};
    Run r("image_augmentation",
          signature(attributes, {floats({1, 3, 5, 7}), rng}, {floats({1, 3, 4, 4})}));
    r.run();
  }
}

}  // namespace

int main() {
  names_are_sorted_and_unknown_ones_have_no_kernel();
  what_is_not_supported_is_declined();
  attributes_name_themselves_in_errors();
  at_least_one_thread_is_wanted();
  products_of_all_sizes_stay_inside_their_arrays();
  any_byte_of_a_mask_counts_once();
  images_are_moved_to_places_inside();
  if (!std::getenv("NNL_ONE_THREAD")) results_do_not_depend_on_the_number_of_threads();
}

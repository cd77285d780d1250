// SPDX-License-Identifier: Apache-2.0
#include "nnl/kernel.h"
#include "nnl/threads.h"
#include "simd.h"

namespace nnl {
namespace {

class Relu : public Kernel {
 public:
  explicit Relu(int64_t n) : n_(n) {}
  void run(const Buffers& b) override {
    const float* x = b.input<float>(0);
    float* y = b.output<float>();
    parallel_for(n_, 1 << 14, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) y[i] = x[i] > 0.0f ? x[i] : 0.0f;
    });
  }
  bool may_overwrite(size_t, size_t) const override { return true; }

 private:
  int64_t n_;
};

std::unique_ptr<Kernel> relu(const Signature& s) {
  if (s.in[0].dtype != DType::f32 || s.in[0].layout != s.out[0].layout) return nullptr;
  return std::make_unique<Relu>(s.in[0].size());
}

const Registration registration("relu", relu);

}  // namespace
}  // namespace nnl

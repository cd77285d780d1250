// SPDX-License-Identifier: Apache-2.0
// Arrays made of attributes alone.
#include "../lowering.h"
#include "nnl/kernel.h"

namespace nnl {
namespace {

// start + i step, counted in float64 and rounded once.
class Arange : public Kernel {
 public:
  explicit Arange(const Signature& s)
      : n_(s.out[0].size()),
        start_(s.attributes.number("start")),
        step_(s.attributes.number("step")) {}

  void run(const Buffers& b) override {
    for (int64_t i = 0; i < n_; ++i)
      b.output<float>()[i] = static_cast<float>(start_ + static_cast<double>(i) * step_);
  }

 private:
  int64_t n_;
  double start_, step_;
};

std::unique_ptr<Kernel> arange(const Signature& s) {
  const Spec& y = s.out[0];
  if (y.dtype != DType::f32 || y.layout != Layout::plain) return nullptr;
  return std::make_unique<Arange>(s);
}

// One number in every element, whatever their order.
class Constant : public Kernel {
 public:
  explicit Constant(const Signature& s) : y_(s.out[0]), value_(s.attributes.number("val")) {}
  void run(const Buffers& b) override { fill(b.out[0], y_, value_); }

 private:
  Spec y_;
  double value_;
};

std::unique_ptr<Kernel> constant(const Signature& s) { return std::make_unique<Constant>(s); }

const Registration registrations[] = {{"arange", arange}, {"constant", constant}};

}  // namespace
}  // namespace nnl

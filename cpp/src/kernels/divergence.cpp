// SPDX-License-Identifier: Apache-2.0
// kl_multinomial, the divergence of distributions.
#include <cmath>

#include "line.h"

namespace nnl {
namespace {

constexpr int64_t kGrain = 1 << 13;

class Divergence : public Kernel {
 public:
  Divergence(const Signature& s, int64_t rows, int64_t n)
      : in_(s.in), out_(s.out[0]), rows_(rows), n_(n) {}
  void run(const Buffers& b) override {
    constexpr float epsilon = 1e-8f;
    const Any p{b.in[0], in_[0].dtype}, q{b.in[1], in_[1].dtype};
    parallel_for(rows_, std::max<int64_t>(1, kGrain / std::max<int64_t>(n_, 1)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t r = begin; r < end; ++r) {
                     const Any a = p + r * n_, c = q + r * n_;
                     const Lanes s = lane_sums(n_, [&](int64_t i, int64_t lanes, auto whole) {
                       const Lanes v = get<whole()>(a + i, lanes), w = get<whole()>(c + i, lanes);
                       return (log_of(v + epsilon) - log_of(w + epsilon)) * v;
                     });
                     set_float(b.out[0], out_.dtype, r, sum_of(s));
                   }
                 });
  }

 private:
  const std::vector<Spec> in_;
  const Spec out_;
  const int64_t rows_, n_;
};

std::unique_ptr<Kernel> divergence(const Signature& s) {
  for (const Spec* a : {&s.in[0], &s.in[1], &s.out[0]})
    if (!is_real(a->dtype) || a->layout != Layout::plain) return nullptr;
  int64_t n = 1;
  const Shape& shape = s.in[0].shape;
  for (size_t i = static_cast<size_t>(s.attributes.integer("base_axis")); i < shape.size(); ++i)
    n *= shape[i];
  return std::make_unique<Divergence>(s, s.out[0].size(), n);
}

const Registration registration("kl_multinomial", divergence);

}  // namespace
}  // namespace nnl

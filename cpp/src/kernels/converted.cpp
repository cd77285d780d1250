// SPDX-License-Identifier: Apache-2.0
#include "converted.h"

#include "nnl/threads.h"
#include "simd.h"

namespace nnl {
namespace {

constexpr int64_t kGrain = 1 << 15;

template <class T>
void load_all(const void* x, float* y, int64_t n) {
  auto* from = static_cast<const T*>(x);
  parallel_for(n, kGrain, [=](int64_t i, int64_t end) { load(from + i, y + i, end - i); });
}

template <class T>
void store_all(const float* x, void* y, int64_t n) {
  auto* to = static_cast<T*>(y);
  parallel_for(n, kGrain, [=](int64_t i, int64_t end) { store(x + i, to + i, end - i); });
}

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

class Converted : public Kernel {
 public:
  Converted(std::unique_ptr<Kernel> inner, const Signature& s, const Signature& as)
      : inner_(std::move(inner)), in_(s.in), out_(s.out) {
    bytes_ = aligned(inner_->workspace());
    for (size_t i = 0; i < in_.size(); ++i) in_at_.push_back(place(s.in[i], as.in[i]));
    for (size_t o = 0; o < out_.size(); ++o) out_at_.push_back(place(s.out[o], as.out[o]));
  }
  size_t workspace() const override { return bytes_; }
  void run(const Buffers& b) override {
    constexpr size_t most = 8;
    void *in[most], *out[most];
    auto* scratch = static_cast<char*>(b.workspace);
    for (size_t i = 0; i < in_.size(); ++i) {
      in[i] = in_at_[i] ? scratch + in_at_[i] : b.in[i];
      if (in_at_[i])
        to_float32(b.in[i], in_[i].dtype, reinterpret_cast<float*>(scratch + in_at_[i]),
                   in_[i].size());
    }
    for (size_t o = 0; o < out_.size(); ++o) out[o] = out_at_[o] ? scratch + out_at_[o] : b.out[o];
    inner_->run({in, out, scratch});
    for (size_t o = 0; o < out_.size(); ++o)
      if (out_at_[o])
        from_float32(reinterpret_cast<float*>(scratch + out_at_[o]), b.out[o], out_[o].dtype,
                     out_[o].size());
  }

 private:
  // Place of a float32 copy in the workspace; 0 where none is needed.
  size_t place(const Spec& s, const Spec& as) {
    if (s.dtype == as.dtype) return 0;
    if (bytes_ == 0) bytes_ = 64;
    const size_t at = bytes_;
    bytes_ += aligned(as.bytes());
    return at;
  }

  std::unique_ptr<Kernel> inner_;
  std::vector<Spec> in_, out_;
  std::vector<size_t> in_at_, out_at_;
  size_t bytes_;
};

}  // namespace

void to_float32(const void* x, DType type, float* y, int64_t n) {
  if (type == DType::f32) return load_all<float>(x, y, n);
  if (type == DType::bf16) return load_all<bf16>(x, y, n);
  load_all<f16>(x, y, n);
}

void from_float32(const float* x, void* y, DType type, int64_t n) {
  if (type == DType::f32) return store_all<float>(x, y, n);
  if (type == DType::bf16) return store_all<bf16>(x, y, n);
  store_all<f16>(x, y, n);
}

std::unique_ptr<Kernel> converted(const Signature& s, Convert which, Setup setup) {
  Signature as = s;
  bool any = false;
  auto convert = [&](Spec& spec) {
    if (spec.dtype == DType::f16 || (spec.dtype == DType::bf16 && which == Convert::halves)) {
      spec.dtype = DType::f32;
      any = true;
    }
  };
  for (size_t i = 0; i < as.in.size(); ++i)
    if (as.given(i)) convert(as.in[i]);
  for (Spec& spec : as.out) convert(spec);
  if (!any || as.in.size() > 8) return nullptr;
  auto inner = setup(as);
  if (!inner) return nullptr;
  return std::make_unique<Converted>(std::move(inner), s, as);
}

}  // namespace nnl

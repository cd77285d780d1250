// SPDX-License-Identifier: Apache-2.0
// fused_convolution as a convolution_fused: a normalization by running statistics is a scale and a
// bias. Statistics of the batch, and padding by anything but zeros, are declined.
#include <cmath>

#include "converted.h"

namespace nnl {
namespace {

enum Input : size_t { x, weight, bias, beta, gamma, mean, variance, z };

bool is_float32(const Signature& s, size_t i) { return !s.given(i) || s.in[i].dtype == DType::f32; }

class Normalized : public Kernel {
 public:
  Normalized(std::unique_ptr<Kernel> inner, const Signature& s)
      : inner_(std::move(inner)),
        maps_(s.in[weight].shape[0]),
        eps_(static_cast<float>(s.attributes.number("eps"))),
        has_bias_(s.given(bias)),
        has_z_(s.given(z)) {
    vector_ = (static_cast<size_t>(maps_) * sizeof(float) + 63) / 64 * 64;
  }
  size_t workspace() const override { return 2 * vector_ + inner_->workspace(); }
  bool may_overwrite(size_t o, size_t i) const override {
    return i == z && inner_->may_overwrite(o, 3);
  }
  void run(const Buffers& b) override {
    auto* scratch = static_cast<char*>(b.workspace);
    auto* scale = reinterpret_cast<float*>(scratch);
    auto* shift = reinterpret_cast<float*>(scratch + vector_);
    for (int64_t o = 0; o < maps_; ++o) {
      scale[o] = b.input<float>(gamma)[o] / std::sqrt(b.input<float>(variance)[o] + eps_);
      const float before = has_bias_ ? b.input<float>(bias)[o] : 0.0f;
      shift[o] = b.input<float>(beta)[o] + (before - b.input<float>(mean)[o]) * scale[o];
    }
    void* in[] = {b.in[x], b.in[weight], shift, has_z_ ? b.in[z] : nullptr, scale};
    inner_->run({in, b.out, scratch + 2 * vector_});
  }

 private:
  std::unique_ptr<Kernel> inner_;
  int64_t maps_;
  float eps_;
  bool has_bias_, has_z_;
  size_t vector_;
};

// Without normalization only the places of the inputs differ.
class Plain : public Kernel {
 public:
  explicit Plain(std::unique_ptr<Kernel> inner) : inner_(std::move(inner)) {}
  size_t workspace() const override { return inner_->workspace(); }
  bool may_overwrite(size_t o, size_t i) const override {
    return i == z && inner_->may_overwrite(o, 3);
  }
  void run(const Buffers& b) override {
    void* in[] = {b.in[x], b.in[weight], b.in[bias], b.in[z], nullptr};
    inner_->run({in, b.out, b.workspace});
  }

 private:
  std::unique_ptr<Kernel> inner_;
};

std::unique_ptr<Kernel> setup(const Signature& s) {
  const Attributes& a = s.attributes;
  if (s.in.size() < 8) return nullptr;
  const bool normalized = s.given(gamma);
  if (normalized && a.flag("batch_stat")) return nullptr;
  if (a.text("pad_mode") != "constant" || a.number("constant_value") != 0.0) return nullptr;
  if (normalized)
    for (size_t i : {bias, beta, gamma, mean, variance})
      if (!is_float32(s, i)) return nullptr;
  std::unordered_map<std::string, Attribute> values;
  for (const char* name : {"base_axis", "group"}) values[name] = a.integer(name);
  for (const char* name : {"pad", "stride", "dilation"}) values[name] = a.integers(name);
  values["channel_last"] = a.flag("channel_last");
  values["activation"] = a.text("nonlinearity");
  const std::string& name = a.text("nonlinearity");
  if (name == "leaky_relu" || name == "elu") values["alpha"] = a.numbers("nonlinearity_args").at(0);
  Signature inner;
  inner.attributes = Attributes(std::move(values));
  const Spec vector{{s.in[weight].shape[0]}, DType::f32, Layout::plain};
  const bool has_bias = normalized || s.given(bias);
  inner.in = {s.in[x], s.in[weight], normalized ? vector : s.in[bias], s.in[z], vector};
  inner.in_given = {true, true, has_bias, s.given(z), normalized};
  inner.out = s.out;
  auto kernel = make_kernel("convolution_fused", inner);
  if (!kernel) return nullptr;
  if (!normalized) return std::make_unique<Plain>(std::move(kernel));
  return std::make_unique<Normalized>(std::move(kernel), s);
}

// Parameters of the half types are converted with everything else.
std::unique_ptr<Kernel> setup_any(const Signature& s) {
  if (auto kernel = setup(s)) return kernel;
  return converted(s, Convert::halves, setup);
}

const Registration registration("fused_convolution", setup_any);

}  // namespace
}  // namespace nnl

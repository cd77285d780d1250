// SPDX-License-Identifier: Apache-2.0
// Largest of the numbers of 8 bits in every window, by oneDNN.
#include "pooling_bytes.h"

#ifdef NNL_ONEDNN
#include "onednn.h"
#endif

namespace nnl {

bool is_byte(DType type) { return type == DType::i8 || type == DType::u8; }

#ifdef NNL_ONEDNN
namespace {

class Largest : public Kernel {
 public:
  explicit Largest(const dnnl::pooling_forward::primitive_desc& pd)
      : call_(pd), scratch_(pd.scratchpad_desc().get_size()) {
    call_.arg(DNNL_ARG_SRC, pd.src_desc()).arg(DNNL_ARG_DST, pd.dst_desc());
    call_.arg(DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc());
  }
  size_t workspace() const override { return scratch_; }
  void run(const Buffers& b) override {
    call_.set(DNNL_ARG_SRC, b.in[0]);
    call_.set(DNNL_ARG_DST, b.out[0]);
    call_.set(DNNL_ARG_SCRATCHPAD, b.workspace);
    call_.run();
  }

 private:
  onednn::Call call_;
  size_t scratch_;
};

}  // namespace

std::unique_ptr<Kernel> largest_byte(const Signature& s) {
  const Attributes& a = s.attributes;
  const auto &kernel = a.integers("kernel"), &stride = a.integers("stride"),
             &pad = a.integers("pad");
  const Spec &x = s.in[0], &y = s.out[0];
  const size_t n = kernel.size();
  const bool last = a.has("channel_last") && a.flag("channel_last");
  if (last || x.shape.size() != n + 2 || n > 3 || !x.size() || !y.size()) return nullptr;
  Shape end, dilation(n);
  for (size_t i = 0; i < n; ++i)
    end.push_back((y.shape[i + 2] - 1) * stride[i] + kernel[i] - x.shape[i + 2] - pad[i]);
  const dnnl::pooling_forward::primitive_desc pd(
      onednn::engine(), dnnl::prop_kind::forward_inference, dnnl::algorithm::pooling_max,
      onednn::desc(x), onednn::desc(y), stride, kernel, dilation, pad, end,
      onednn::with_scratchpad(), true);
  return pd ? std::make_unique<Largest>(pd) : nullptr;
}
#else
std::unique_ptr<Kernel> largest_byte(const Signature&) { return nullptr; }
#endif

}  // namespace nnl

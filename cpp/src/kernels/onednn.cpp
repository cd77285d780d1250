// SPDX-License-Identifier: Apache-2.0
#ifdef NNL_ONEDNN
#include "onednn.h"

#include "../set_up.h"

namespace nnl::onednn {

const dnnl::engine& engine() {
  static const dnnl::engine e(dnnl::engine::kind::cpu, 0);
  return e;
}

dnnl::memory::data_type type_of(DType type) {
  using T = dnnl::memory::data_type;
  switch (type) {
    case DType::f32:
      return T::f32;
    case DType::bf16:
      return T::bf16;
    case DType::f16:
      return T::f16;
    case DType::i8:
      return T::s8;
    case DType::u8:
    case DType::boolean:
      return T::u8;
    case DType::i32:
      return T::s32;
    default:
      return T::undef;
  }
}

dnnl::memory::desc desc(const Spec& spec) {
  if (spec.shape.empty()) return {{1}, type_of(spec.dtype), {1}};
  return {spec.shape, type_of(spec.dtype), spec.strides()};
}

dnnl::memory::desc any(const Spec& spec, DType type) {
  return {spec.shape, type_of(type), dnnl::memory::format_tag::any};
}

std::string text_of(const dnnl::memory::desc& d) {
  std::string text = std::to_string(static_cast<int>(d.get_data_type())) + "," +
                     std::to_string(static_cast<int>(d.get_format_kind())) + "," +
                     std::to_string(d.get_size());
  for (const auto& numbers : {d.get_dims(), d.get_padded_dims(), d.get_strides(),
                              d.get_inner_blks(), d.get_inner_idxs()}) {
    text += ";";
    for (const auto n : numbers) text += std::to_string(n) + ",";
  }
  return text;
}

dnnl::primitive_attr with_scratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

Call::Call(const dnnl::primitive_desc_base& desc)
    : primitive_(std::make_shared<dnnl::primitive>()) {
  SetUp::later([made = primitive_, desc, n = threads_] {
    const ThreadScope scope(n);
    *made = dnnl::primitive(desc.get());
  });
}

Call& Call::arg(int id, const dnnl::memory::desc& d) {
  const auto made = memories_.emplace(id, dnnl::memory(d, engine(), nullptr));
  if (made.second) args_.push_back({id, made.first->second.get()});
  return *this;
}

void Call::run() {
  static thread_local dnnl::stream stream(engine());
  const ThreadScope scope(threads_);
  dnnl::error::wrap_c_api(dnnl_primitive_execute(primitive_->get(), stream.get(),
                                                 static_cast<int>(args_.size()), args_.data()),
                          "oneDNN could not run");
  stream.wait();
  if (threads_ > 1) helpers_were_used();
}

Call reorder(const dnnl::memory::desc& from, const dnnl::memory::desc& to) {
  dnnl::reorder::primitive_desc pd(engine(), from, engine(), to, with_scratchpad());
  if (pd.scratchpad_desc().get_size())  // weights of 8 bits, whose sums lie behind them
    pd = {engine(), from, engine(), to};
  Call call(pd);
  call.arg(DNNL_ARG_FROM, from).arg(DNNL_ARG_TO, to);
  return call;
}

std::unique_ptr<Kernel> packer(const dnnl::memory::desc& from, const dnnl::memory::desc& to) {
  class Packer : public Kernel {
   public:
    explicit Packer(Call call) : call_(std::move(call)) {}
    void run(const Buffers& b) override {
      call_.set(DNNL_ARG_FROM, b.in[0]);
      call_.set(DNNL_ARG_TO, b.out[0]);
      call_.run();
    }

   private:
    Call call_;
  };
  return std::make_unique<Packer>(reorder(from, to));
}

}  // namespace nnl::onednn
#endif

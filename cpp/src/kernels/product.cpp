// SPDX-License-Identifier: Apache-2.0
#include "product.h"

#include <algorithm>

#include "gemm.h"
#include "nnl/errors.h"
#include "nnl/threads.h"
#include "quantized.h"
#include "row_product.h"

namespace nnl {

#ifdef NNL_ONEDNN
void append(dnnl::post_ops& ops, Curve f) {
  using A = dnnl::algorithm;
  switch (f) {
    case Curve::none:
      return;
    case Curve::relu:
      return ops.append_eltwise(A::eltwise_relu, 0, 0);
    case Curve::gelu:
      return ops.append_eltwise(A::eltwise_gelu_tanh, 0, 0);
    case Curve::tanh:
      return ops.append_eltwise(A::eltwise_tanh, 0, 0);
    case Curve::sigmoid:
      return ops.append_eltwise(A::eltwise_logistic, 0, 0);
    case Curve::swish:
      return ops.append_eltwise(A::eltwise_swish, 1, 0);
  }
}
#endif

namespace {

// An operand that is first brought to another element type, or taken as it is.
class Operand {
 public:
  Operand() = default;
  Operand(DType type, DType wanted, int64_t elements, Space& space)
      : type_(type), wanted_(wanted), elements_(elements) {
    if (type != wanted) at_ = space.take(static_cast<size_t>(elements) * bytes_of(wanted));
  }
  const void* ready(const void* x, void* workspace) const {
    if (type_ == wanted_ || !x) return x;
    void* y = Space::at<char>(workspace, at_);
    convert(type_, x, wanted_, y, elements_);
    return y;
  }

 private:
  DType type_ = DType::f32, wanted_ = DType::f32;
  int64_t elements_ = 0;
  size_t at_ = 0;
};

int64_t batch_of(const Shape& shape) {
  int64_t n = 1;
  for (size_t i = 0; i + 2 < shape.size(); ++i) n *= shape[i];
  return n;
}

// Products by gemm.h: rows and batches are divided among threads.
class Loops : public Product {
 public:
  Loops(const ProductSpec& s, Space& space) : s_(s) {
    m_ = s.y.rows(), n_ = s.y.columns(), k_ = s.a.columns(), batch_ = batch_of(s.y.shape);
    a_ = Operand(s.a.dtype, DType::f32, s.a.elements, space);
    b_ = Operand(s.b.dtype, DType::f32, s.b.elements, space);
    if (s.bias) bias_ = Operand(s.bias_type, DType::f32, n_, space);
    if (s.addend) z_ = Operand(s.addend_type, DType::f32, s.y.elements, space);
    if (s.y.dtype != DType::f32) y_ = space.floats(s.y.elements);
    packed_ = gemm::packed_size(k_, n_);
    const size_t r = s.b.shape.size();
    one_b_ = true;  // whether all batches share one b
    for (size_t i = 0; i + 2 < r; ++i) one_b_ = one_b_ && (s.b.shape[i] == 1 || !s.b.strides[i]);
    packs_ = one_b_ ? 1 : batch_;
    b_packed_ = space.floats(packs_ * packed_);
    const int64_t work = std::max<int64_t>(m_ * n_ * k_, 1);
    rows_ = std::min(m_, std::max<int64_t>(24, 65536 * 24 / std::max<int64_t>(n_ * k_, 1)));
    blocks_ = rows_ ? (m_ + rows_ - 1) / rows_ : 0;
    grain_ = std::max<int64_t>(1, 300000 * std::max<int64_t>(blocks_, 1) / work);
  }

  void run(const void* a, const void* b, const void* bias, const void* z, void* y,
           void* workspace) override {
    if (!s_.y.elements) return;
    const float* fa = static_cast<const float*>(a_.ready(a, workspace));
    const float* fb = static_cast<const float*>(b_.ready(b, workspace));
    const float* fbias = static_cast<const float*>(bias_.ready(bias, workspace));
    const float* fz = static_cast<const float*>(z_.ready(z, workspace));
    const bool direct = s_.y.dtype == DType::f32;
    float* fy = direct ? static_cast<float*>(y) : Space::at(workspace, y_);
    float* packed = Space::at(workspace, b_packed_);
    const size_t r = s_.b.shape.size();
    parallel_for(packs_, std::max<int64_t>(1, 40000 / std::max<int64_t>(packed_, 1)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i)
                     gemm::pack(fb + (one_b_ ? 0 : offset(s_.b, i)), s_.b.strides[r - 2],
                                s_.b.strides[r - 1], k_, n_, packed + i * packed_);
                 });
    parallel_for(batch_ * blocks_, grain_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t batch = i / blocks_, row = i % blocks_ * rows_;
        const int64_t m = std::min(rows_, m_ - row);
        const size_t q = s_.a.strides.size();
        float* to = fy + (batch * m_ + row) * n_;
        gemm::multiply(fa + offset(s_.a, batch) + row * s_.a.strides[q - 2], s_.a.strides[q - 2],
                       s_.a.strides[q - 1], packed + (one_b_ ? 0 : batch * packed_), to, n_, m, n_,
                       k_, false);
        for (int64_t k = 0; k < m && fbias; ++k)
          for (int64_t j = 0; j < n_; ++j) to[k * n_ + j] += fbias[j];
        if (fz) {
          const float* add = fz + (to - fy);
#pragma omp simd
          for (int64_t j = 0; j < m * n_; ++j) to[j] += add[j];
        }
        activate(s_.activation, to, m * n_);
      }
    });
    if (!direct) convert(DType::f32, fy, s_.y.dtype, y, s_.y.elements);
  }

 private:
  // Where the matrices of batch i of y begin in an operand.
  int64_t offset(const Matrices& x, int64_t i) const {
    int64_t at = 0;
    for (size_t axis = s_.y.shape.size() - 2; axis-- > 0; i /= s_.y.shape[axis])
      if (x.shape[axis] != 1) at += i % s_.y.shape[axis] * x.strides[axis];
    return at;
  }

  ProductSpec s_;
  int64_t m_, n_, k_, batch_, packed_, packs_, rows_, blocks_, grain_;
  bool one_b_;
  Operand a_, b_, bias_, z_;
  size_t y_ = 0, b_packed_ = 0;
};

#ifdef NNL_ONEDNN
using dnnl::memory;

memory::desc desc(const Matrices& x, DType type) {
  return {x.shape, onednn::type_of(type), x.strides};
}

memory::desc bias_desc(const ProductSpec& s) {
  const int64_t n = s.y.columns();
  Shape row(s.y.shape.size() - 1, 1), steps(row.size(), n);
  row.push_back(n), steps.push_back(1);
  return {row, memory::data_type::f32, steps};
}

// The type in which what is added is read.
DType addend_as(const ProductSpec& s) {
  return s.addend_type == DType::f16 ? DType::f32 : s.addend_type;
}

// The primitive for operands of this type. A product of bfloat16 may be stored as float32 or
// bfloat16, one of float32 only as such.
dnnl::matmul::primitive_desc primitive_of(const ProductSpec& s, DType type, DType y_type) {
  dnnl::primitive_attr attr = onednn::with_scratchpad();
  dnnl::post_ops ops;
  if (s.addend) ops.append_binary(dnnl::algorithm::binary_add, desc(s.y, addend_as(s)));
  append(ops, s.activation);
  attr.set_post_ops(ops);
  memory::desc b = desc(s.b, type);
  if (s.packed) b = {s.b.shape, onednn::type_of(type), memory::format_tag::any};
  const auto a = desc(s.a, type), y = desc(s.y, y_type);
  if (!s.bias) return {onednn::engine(), a, b, y, attr};
  return {onednn::engine(), a, b, bias_desc(s), y, attr};
}

class OneDnn : public Product {
 public:
  OneDnn(const ProductSpec& s, DType type, Space& space) : s_(s) {
    a_ = Operand(s.a.dtype, type, s.a.elements, space);
    b_ = Operand(s.b.dtype, type, s.b.elements, space);
    if (s.bias) bias_ = Operand(s.bias_type, DType::f32, s.y.columns(), space);
    if (s.addend) z_ = Operand(s.addend_type, addend_as(s), s.y.elements, space);
    type_ = type == DType::bf16 && s.y.dtype == DType::bf16 ? DType::bf16 : DType::f32;
    if (type_ != s.y.dtype) y_ = space.floats(s.y.elements);
    const auto pd = primitive_of(s, type, type_);
    scratch_ = space.take(pd.scratchpad_desc().get_size());
    call_ = onednn::Call(pd);
    call_.arg(DNNL_ARG_SRC, pd.src_desc()).arg(DNNL_ARG_WEIGHTS, pd.weights_desc());
    call_.arg(DNNL_ARG_DST, pd.dst_desc()).arg(DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc());
    if (s.bias) call_.arg(DNNL_ARG_BIAS, bias_desc(s));
    if (s.addend) call_.arg(kAddend, desc(s.y, addend_as(s)));
  }

  void run(const void* a, const void* b, const void* bias, const void* z, void* y,
           void* workspace) override {
    call_.set(DNNL_ARG_SRC, a_.ready(a, workspace));
    call_.set(DNNL_ARG_WEIGHTS, b_.ready(b, workspace));
    if (s_.bias) call_.set(DNNL_ARG_BIAS, bias_.ready(bias, workspace));
    if (s_.addend) call_.set(kAddend, z_.ready(z, workspace));
    void* to = type_ == s_.y.dtype ? y : Space::at(workspace, y_);
    call_.set(DNNL_ARG_DST, to);
    call_.set(DNNL_ARG_SCRATCHPAD, Space::at(workspace, scratch_));
    call_.run();
    if (to != y) convert(type_, to, s_.y.dtype, y, s_.y.elements);
  }

 private:
  static constexpr int kAddend = DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1;
  ProductSpec s_;
  DType type_;
  Operand a_, b_, bias_, z_;
  size_t y_ = 0, scratch_ = 0;
  onednn::Call call_;
};

// Whether converting the operands costs little beside their product, in time and in memory.
bool is_worth_converting(const ProductSpec& s) {
  return s.y.rows() >= kConverted && std::max(s.a.elements, s.b.elements) <= 1 << 25;
}

// bfloat16 where the result is: a float32 weight then loses no more than the result does.
DType type_of(const ProductSpec& s) {
  const bool a = s.a.dtype == DType::bf16, b = s.b.dtype == DType::bf16;
  if ((a || b) && !multiplies_bf16() && is_worth_converting(s)) return DType::f32;
  if (a && b) return DType::bf16;
  const bool fits = s.a.dtype != DType::f16 && s.b.dtype != DType::f16;
  return (a || b) && fits && s.y.dtype == DType::bf16 ? DType::bf16 : DType::f32;
}
#endif

#ifdef NNL_ONEDNN
// Whether oneDNN does it.
bool is_large(const ProductSpec& s) {
  const int64_t one = s.y.rows() * s.y.columns() * s.a.columns();
  const bool counts = std::max({s.y.rows(), s.y.columns(), s.a.columns()}) <= INT32_MAX;  // in int
  return one > 32 * 32 * 32 && s.y.elements && counts;
}

int most_threads(const ProductSpec& s) {
  return onednn::most_threads(2 * s.y.elements * s.a.columns());
}

#endif

}  // namespace

Curve activation_of(const std::string& name) {
  static const char* const names[] = {"identity", "relu", "gelu", "tanh", "sigmoid", "swish"};
  for (int i = 0; i < 6; ++i)
    if (name == names[i]) return static_cast<Curve>(i);
  throw ValueError("activation is '" + name +
                   "', wanted identity, relu, gelu, tanh, sigmoid or swish");
}

void activate(Curve f, float* x, int64_t n) {
  switch (f) {
    case Curve::none:
      return;
    case Curve::relu:
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) x[i] = x[i] < 0.0f ? 0.0f : x[i];
      return;
    case Curve::gelu:  // sqrt(2 / pi) and 0.044715 times it
#pragma omp simd
      for (int64_t i = 0; i < n; ++i)
        x[i] =
            0.5f * x[i] * (1.0f + fast_tanh(x[i] * (0.797884561f + 0.0356774081f * x[i] * x[i])));
      return;
    case Curve::tanh:
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) x[i] = fast_tanh(x[i]);
      return;
    case Curve::sigmoid:
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) x[i] = fast_sigmoid(x[i]);
      return;
    case Curve::swish:
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) x[i] = x[i] * fast_sigmoid(x[i]);
      return;
  }
}

// Joins batch axes where one run over them visits all operands evenly, and lets the rows of all
// batches be one matrix where they share b: fewer and larger products.
ProductSpec simplified(ProductSpec s) {
  for (size_t i = 0; i + 3 < s.y.shape.size();) {
    bool joins = true;
    for (const Matrices* x : {&s.a, &s.b}) {
      const bool repeats = x->shape[i] == 1 && x->shape[i + 1] == 1;
      const bool runs = x->shape[i] == s.y.shape[i] && x->shape[i + 1] == s.y.shape[i + 1] &&
                        x->strides[i] == x->shape[i + 1] * x->strides[i + 1];
      joins = joins && (repeats || runs);
    }
    if (!joins) {
      ++i;
      continue;
    }
    const auto at = static_cast<std::ptrdiff_t>(i);
    for (Matrices* x : {&s.a, &s.b, &s.y}) {
      x->shape[i + 1] *= x->shape[i];
      x->shape.erase(x->shape.begin() + at);
      x->strides.erase(x->strides.begin() + at);
    }
  }
  if (s.y.shape.size() == 3 && s.b.shape[0] == 1 && s.a.shape[0] == s.y.shape[0] &&
      s.a.strides[0] == s.a.shape[1] * s.a.strides[1]) {
    for (Matrices* x : {&s.a, &s.y}) {
      x->shape = {x->shape[0] * x->shape[1], x->shape[2]};
      x->strides.erase(x->strides.begin());
    }
    s.b.shape.erase(s.b.shape.begin());
    s.b.strides.erase(s.b.strides.begin());
  }
  return s;
}

Matrices Matrices::of(DType dtype, Shape shape) {
  Matrices x{dtype, std::move(shape), {}, 1};
  x.strides.resize(x.shape.size());
  for (size_t i = x.shape.size(); i-- > 0; x.elements *= x.shape[i]) x.strides[i] = x.elements;
  return x;
}

Matrices Matrices::transposed() const {
  Matrices x = *this;
  const size_t n = shape.size();
  std::swap(x.shape[n - 1], x.shape[n - 2]);
  std::swap(x.strides[n - 1], x.strides[n - 2]);
  return x;
}

std::unique_ptr<Product> Product::make(const ProductSpec& spec, Space& space) {
  const ProductSpec s = simplified(spec);
#ifdef NNL_ONEDNN
  const ThreadScope scope(most_threads(s));
  if (s.packed) return std::make_unique<OneDnn>(s, DType::f32, space);
#endif
  if (auto row = make_row_product(s, space)) return row;
#ifdef NNL_ONEDNN
  if (is_large(s)) {
    try {
      return std::make_unique<OneDnn>(s, type_of(s), space);
    } catch (const dnnl::error&) {
      // strides or types that oneDNN does not take
    }
  }
#endif
  return std::make_unique<Loops>(s, space);
}

std::unique_ptr<Kernel> make_packer([[maybe_unused]] const ProductSpec& spec,
                                    [[maybe_unused]] PackedOrder& order) {
#ifdef NNL_ONEDNN
  ProductSpec s = simplified(spec);
  Space space;
  for (DType type : {s.a.dtype, s.b.dtype, s.y.dtype})
    if (type != DType::f32) return nullptr;
  if (s.b.shape.size() != 2 || !is_large(s) || make_row_product(s, space)) return nullptr;
  s.packed = true;
  const ThreadScope scope(most_threads(s));
  try {
    const memory::desc plain = desc(s.b, DType::f32);
    const memory::desc packed = primitive_of(s, DType::f32, DType::f32).weights_desc();
    if (packed == plain) return nullptr;
    order = {packed.get_size(), onednn::text_of(packed)};
    return onednn::packer(plain, packed);
  } catch (const dnnl::error&) {
    return nullptr;  // strides that oneDNN does not take
  }
#else
  return nullptr;
#endif
}

}  // namespace nnl

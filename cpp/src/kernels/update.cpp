// SPDX-License-Identifier: Apache-2.0
// The solvers' updates: one pass over memory, over one parameter or many.
//
// multi_update: an update rule for many parameters in one kernel, work divided by elements.
//   Attributes: rule, the name of its op, and the attributes of that; count, of parameters;
//   gradient_scale and gradient_decay: the gradient is taken as gradient_scale g + gradient_decay
//   w. Inputs: those of the rule for the first parameter, then for the second, and so on. Outputs:
//   none, or w of each parameter; w may be given in 16 bits, besides the one that is updated.
//   masters: if it names a type, every parameter, of 16 bits, has a master in float32 as its last
//   input, which the rule updates; w is the master rounded.
// master_update: that for one parameter.
#include <algorithm>
#include <cstring>

#include "nnl/kernel.h"
#include "nnl/threads.h"
#include "real.h"
#include "space.h"
#include "update_rules.h"

namespace nnl {
namespace {

constexpr int64_t kBlock = 1024;  // elements; up to 6 arrays of it in the first cache
constexpr int kMost = 6;          // arrays of one parameter

double rate(DType type, const void* x) {
  if (type == DType::f64) return *static_cast<const double*>(x);
  float y;
  load_any(type, x, 0, &y, 1);
  return y;
}

class Update : public Kernel {
 public:
  Update(const Signature& s, std::unique_ptr<Rule> rule, size_t count, bool masters)
      : rule_(std::move(rule)),
        states_(static_cast<size_t>(rule_->states())),
        masters_(masters),
        in_(s.in),
        out_(s.out) {
    inputs_ = count ? s.in.size() / count : 0;
    has_out_ = !s.out.empty();
    optional_ = rule_->has_optional() && count && s.given(4 + states_);
    arrays_ = 2 + states_ + (rule_->has_optional() ? 1 : 0);
    int64_t blocks = 0;
    for (size_t i = 0; i < count; ++i) {
      first_.push_back(blocks);
      sizes_.push_back(s.in[i * inputs_].size());
      blocks += (sizes_.back() + kBlock - 1) / kBlock;
    }
    first_.push_back(blocks);
    constants_ = space_.take(count * sizeof(Constants));
    if (rule_->in_two_passes())
      sums_ = space_.take(static_cast<size_t>(blocks) * 2 * sizeof(double));
  }

  // The gradient is taken as scale g + decay w.
  void change_gradient(double scale, double decay) { scale_ = scale, decay_ = decay; }

  size_t workspace() const override { return space_.size(); }
  bool may_overwrite(size_t o, size_t i) const override {
    return i == o * inputs_ && out_[o].dtype == in_[i].dtype;
  }

  void run(const Buffers& b) override {
    const size_t count = sizes_.size();
    auto* constants = Space::at<Constants>(b.workspace, constants_);
    int64_t last_step = 0;
    double last_lr = 0;
    for (size_t i = 0; i < count; ++i) {
      const size_t t = i * inputs_ + 2 + states_;
      const int64_t step = ++*b.written_input<int64_t>(t);
      const double lr = rate(in_[t + 1].dtype, b.in[t + 1]);
      // many parameters are at the same step with the same rate
      const bool same = i && step == last_step && lr == last_lr;
      constants[i] = same ? constants[i - 1] : rule_->at(step, lr);
      last_step = step, last_lr = lr;
    }
    constexpr int64_t grain = 16;  // blocks
    if (rule_->in_two_passes()) {
      auto* sums = Space::at<double>(b.workspace, sums_);
      parallel_for(first_.back(), grain, [&](int64_t begin, int64_t end) {
        walk(b, begin, end, [&](int64_t block, size_t i, float* const* p, int64_t n) {
          sums[2 * block] = sums[2 * block + 1] = 0.0;
          rule_->first_pass(constants[i], p, n, sums + 2 * block);
        });
      });
      for (size_t i = 0; i < count; ++i) {
        double total[2] = {0.0, 0.0};  // in the order of the elements, for any number of threads
        for (int64_t k = first_[i]; k < first_[i + 1]; ++k)
          total[0] += sums[2 * k], total[1] += sums[2 * k + 1];
        rule_->after_first(constants[i], total);
      }
    }
    parallel_for(first_.back(), grain, [&](int64_t begin, int64_t end) {
      walk(b, begin, end, [&](int64_t block, size_t i, float* const* p, int64_t n) {
        rule_->apply(constants[i], p, n);
        if (!has_out_) return;
        void* y = b.out[i];
        if (y && y != b.in[i * inputs_])
          store_any(out_[i].dtype, p[0], y, (block - first_[i]) * kBlock, n);
      });
    });
  }

 private:
  // f(block, parameter, arrays as float32, elements) for the blocks [begin, end).
  template <class F>
  void walk(const Buffers& b, int64_t begin, int64_t end, F&& f) const {
    float buffer[kMost][kBlock];
    size_t i = static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), begin) -
                                   first_.begin()) -
               1;
    for (int64_t block = begin; block < end; ++block) {
      while (block >= first_[i + 1]) ++i;
      const int64_t at = (block - first_[i]) * kBlock, n = std::min(kBlock, sizes_[i] - at);
      float* p[kMost];
      for (size_t k = 0; k < arrays_; ++k) {
        const size_t input = input_of(i, k);
        const DType type = in_[input].dtype;
        p[k] = nullptr;
        if (k == 2 + states_ && !optional_) continue;
        p[k] = b.written_input<float>(input) + at;
        if (type != DType::f32) {
          p[k] = buffer[k];
          load_any(type, b.in[input], at, p[k], n);
        }
      }
      if (scale_ != 1.0 || decay_ != 0.0) {
        const auto scale = static_cast<float>(scale_), decay = static_cast<float>(decay_);
        const float *g = p[1], *w = p[0];
        p[1] = buffer[1];
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) p[1][j] = g[j] * scale + w[j] * decay;
      }
      if (masters_) {
        float* master = b.written_input<float>((i + 1) * inputs_ - 1) + at;
        begin_again(in_[i * inputs_].dtype, p[0], master, n);
        p[0] = master;
      }
      f(block, i, p, n);
      for (size_t k = 0; k < arrays_; ++k) {
        const size_t input = input_of(i, k);
        if (k != 1 && p[k] && in_[input].dtype != DType::f32)
          store_any(in_[input].dtype, p[k], b.in[input], at, n);
      }
    }
  }

  // w, g, states; the optional array lies after t and lr.
  size_t input_of(size_t parameter, size_t k) const {
    return parameter * inputs_ + (k < 2 + states_ ? k : k + 2);
  }

  std::unique_ptr<Rule> rule_;
  size_t states_, inputs_ = 0, arrays_ = 0;
  bool masters_;
  std::vector<Spec> in_, out_;
  bool has_out_ = false, optional_ = false;
  double scale_ = 1.0, decay_ = 0.0;
  std::vector<int64_t> first_, sizes_;  // per parameter: its first block, its elements
  Space space_;
  size_t constants_ = 0, sums_ = 0;
};

std::unique_ptr<Update> make(const Signature& s, const std::string& name, size_t count,
                             bool masters = false) {
  auto rule = rule_of(name, s.attributes);
  if (!rule) throw ValueError("rule is '" + name + "', wanted the name of an update rule's op");
  const auto states = static_cast<size_t>(rule->states());
  if (!count) return nullptr;
  const size_t inputs = s.in.size() / count;
  if (s.in.size() != count * inputs || inputs < 4 + states + masters) return nullptr;
  for (size_t i = 0; i < s.in.size(); ++i) {
    const size_t k = i % inputs;
    if (k == 2 + states && s.in[i].dtype != DType::i64) return nullptr;
    if (k == 3 + states && !is_real(s.in[i].dtype) && s.in[i].dtype != DType::f64) return nullptr;
    if (k == 2 + states || k == 3 + states || !s.in_given[i]) continue;
    const Spec& w = s.in[i - k];
    if (!is_real(s.in[i].dtype) || s.in[i].layout != w.layout) return nullptr;
    if (masters && (!is_half(w.dtype) || (k == inputs - 1 && s.in[i].dtype != DType::f32)))
      return nullptr;
  }
  for (size_t o = 0; o < s.out.size(); ++o)
    if (o * inputs >= s.in.size() ||
        (s.out[o].dtype != s.in[o * inputs].dtype && !is_half(s.out[o].dtype)) ||
        s.out[o].layout != s.in[o * inputs].layout)
      return nullptr;
  return std::make_unique<Update>(s, std::move(rule), count, masters);
}

std::unique_ptr<Kernel> multi_update(const Signature& s) {
  const Attributes& a = s.attributes;
  const auto count = static_cast<size_t>(a.integer("count"));
  const std::string rule = a.text("rule");
  const bool masters = a.has("masters") && !a.text("masters").empty();
  if (rule == "muon_update") {
    if (a.number("gradient_scale") != 1.0 || a.number("gradient_decay") != 0.0) return nullptr;
    return make_muon(s, count, masters);
  }
  auto kernel = make(s, rule, count, masters);
  if (kernel) kernel->change_gradient(a.number("gradient_scale"), a.number("gradient_decay"));
  return kernel;
}

std::unique_ptr<Kernel> master_update(const Signature& s) {
  const std::string rule = s.attributes.text("rule");
  if (rule == "muon_update") return make_muon(s, 1, true);
  return make(s, rule, 1, true);
}

const Registration of_master("master_update", master_update);
const Registration multi("multi_update", multi_update, Abilities().copy());

#define NNL_RULE(name)                                                                         \
  const Registration name(#name "_update", [](const Signature& s) -> std::unique_ptr<Kernel> { \
    return make(s, #name "_update", 1);                                                        \
  });
NNL_RULE(sgd)
NNL_RULE(momentum)
NNL_RULE(nesterov)
NNL_RULE(lars)
NNL_RULE(adagrad)
NNL_RULE(adadelta)
NNL_RULE(rmsprop)
NNL_RULE(rmsprop_graves)
NNL_RULE(adam)
NNL_RULE(adamax)
NNL_RULE(adabelief)
NNL_RULE(amsgrad)
NNL_RULE(adabound)
NNL_RULE(amsbound)
NNL_RULE(lamb)
NNL_RULE(lion)

}  // namespace
}  // namespace nnl

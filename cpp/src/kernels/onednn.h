// SPDX-License-Identifier: Apache-2.0
// What the kernels that use oneDNN share. Included only where NNL_ONEDNN is defined.
#pragma once
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "nnl/kernel.h"
#include "nnl/threads.h"

namespace nnl::onednn {

const dnnl::engine& engine();
dnnl::memory::data_type type_of(DType type);

// The descriptor of a spec as it lies in memory. Sizes of 0 are the caller's to decline.
dnnl::memory::desc desc(const Spec& spec);
// The same shape in whatever order oneDNN likes best.
dnnl::memory::desc any(const Spec& spec, DType type);

// An order in memory, the same text for two that are the same.
std::string text_of(const dnnl::memory::desc& desc);

// Attributes of a primitive: scratch memory comes from the caller.
dnnl::primitive_attr with_scratchpad();

// The most threads for this many multiplications and additions, 0 for no limit. One core does a
// million of them in about 20 us; waking another takes nearly as long, and many times that where
// others use it too.
inline int most_threads(int64_t operations) { return operations < 1 << 20 ? 1 : 0; }

// A primitive with its memory objects, whose addresses are set at every run. Made in set-up only,
// and late (see SetUp): that costs up to some 10 ms, running a small one under a microsecond. It
// runs on no more threads than it was made for.
class Call {
 public:
  Call() = default;
  explicit Call(const dnnl::primitive_desc_base& desc);
  Call& arg(int id, const dnnl::memory::desc& d);
  bool ready() const { return primitive_ != nullptr; }
  void set(int id, const void* data) { memories_.at(id).set_data_handle(const_cast<void*>(data)); }
  void run();

 private:
  std::shared_ptr<dnnl::primitive> primitive_;  // empty until it is made
  std::unordered_map<int, dnnl::memory> memories_;
  std::vector<dnnl_exec_arg_t> args_;  // the same, as a call takes them
  int threads_ = threads();
};

// Copies an array from one order (and element type) to another.
Call reorder(const dnnl::memory::desc& from, const dnnl::memory::desc& to);
// The same as a kernel, of its only input.
std::unique_ptr<Kernel> packer(const dnnl::memory::desc& from, const dnnl::memory::desc& to);

// Hands out parts of a workspace, 64-byte aligned: first to learn the size, then at each run.
class Parts {
 public:
  size_t take(size_t bytes) {
    const size_t at = size_;
    size_ += (bytes + 63) / 64 * 64;
    return at;
  }
  size_t size() const { return size_; }

 private:
  size_t size_ = 0;
};

}  // namespace nnl::onednn

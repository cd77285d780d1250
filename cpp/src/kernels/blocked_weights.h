// SPDX-License-Identifier: Apache-2.0
// Weights from their plain order into oneDNN's blocked ones and back.
//
// oneDNN's own reorders of plain weights run at 1 to 4 GB/s: they walk along one axis while the
// other strides over the cache. Here a block is read whole, line by line, and permuted from the
// first cache.
#pragma once
#ifdef NNL_ONEDNN
#include <cstdint>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "nnl/spec.h"

namespace nnl {

class BlockedWeights {
 public:
  BlockedWeights() = default;
  // `plain`: dense weights (O, I, *K) or (G, O, I, *K) in this order; `blocked`: the same sizes
  // with inner blocks over O and I only. Not ready for anything else.
  BlockedWeights(const dnnl::memory::desc& plain, const dnnl::memory::desc& blocked, bool groups);
  bool ready() const { return ready_; }
  void block(const void* plain, void* blocked) const;
  void unblock(const void* blocked, void* plain) const;

 private:
  template <class From, class To, bool back>
  void move(const void* from, void* to) const;
  template <class Plain, class Blocked, bool back>
  void move_lanes(const void* from, void* to) const;
  template <bool back>
  void dispatch(const void* from, void* to) const;

  bool ready_ = false;
  int64_t groups_ = 1, maps_ = 0, channels_ = 0, taps_ = 1;  // per group
  int64_t map_block_ = 1, channel_block_ = 1;
  int64_t group_step_ = 0, map_step_ = 0, channel_step_ = 0, tap_step_ = 0;  // of blocks
  // Of the values of a block: where they are in (map, channel, tap) order, and the other way round.
  std::vector<int32_t> order_, place_;
  // Where 16 maps of one channel and tap lie side by side (or as the first or second of pairs of
  // channels), blocks are transposed in registers: the step from one such map to the next, else 0.
  int64_t lane_step_ = 0;
  DType plain_type_ = DType::f32, blocked_type_ = DType::f32;
};

}  // namespace nnl
#endif

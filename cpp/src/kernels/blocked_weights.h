// SPDX-License-Identifier: Apache-2.0
// Weights from their plain order into oneDNN's blocked ones and back, and from tiles into them.
//
// oneDNN's own reorders of plain weights run at 1 to 4 GB/s: they walk along one axis while the
// other strides over the cache. Here a block is read whole, line by line, and permuted from the
// first cache. Tiles of 16 by 16 (Layout::tiled) are blocks already: their lines are moved, or a
// tile is transposed.
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
  // `plain`: dense weights (O, I, *K) or (G, O, I, *K) in this order, or tiled ones; `blocked`: the
  // same sizes with inner blocks over O and I only. It can do nothing with anything else.
  BlockedWeights(const dnnl::memory::desc& plain, const dnnl::memory::desc& blocked, bool groups);
  bool can_block() const { return lanes_ != Lanes::none; }
  bool can_unblock() const { return lanes_ == Lanes::maps && lane_step_ == 1 && !tiled_; }
  void block(const void* plain, void* blocked) const;
  void unblock(const void* blocked, void* plain) const;

 private:
  // What lies side by side in blocks, 16 and more of them: with a step of 1, or of 2 where the
  // other takes turns in pairs. Blocks are transposed in registers of 16 such values.
  enum class Lanes { none, maps, channels };

  bool read_taps(const dnnl::memory::desc& plain, const dnnl::memory::desc& blocked, size_t first);
  bool read_blocks(const dnnl::memory::desc& blocked, int o, int i);
  // Where the value of (group, map, channel, tap) lies in blocked weights.
  int64_t place(int64_t g, int64_t m, int64_t c, int64_t t) const {
    const int64_t e = m % map_block_ * channel_block_ + c % channel_block_;
    return g * group_step_ + m / map_block_ * map_step_ + c / channel_block_ * channel_step_ +
           t * tap_step_ + places_[static_cast<size_t>(e)];
  }
  template <class Plain, class Blocked>
  void block_maps(const Plain* from, Blocked* to) const;
  template <class Plain, class Blocked>
  void block_channels(const Plain* from, Blocked* to) const;
  template <class Plain, class Blocked>
  void unblock_maps(const Blocked* from, Plain* to) const;
  template <class Tiled, class Blocked>
  void move_tiles(const Tiled* from, Blocked* to) const;

  Lanes lanes_ = Lanes::none;
  bool tiled_ = false;  // what is to be blocked, instead of plain
  int64_t lane_step_ = 1;
  int64_t groups_ = 1, maps_ = 0, channels_ = 0, taps_ = 1;  // maps and channels per group
  int64_t map_block_ = 1, channel_block_ = 1;
  int64_t all_maps_ = 0, all_channels_ = 0;  // with those that fill up the last block
  int64_t group_step_ = 0, map_step_ = 0, channel_step_ = 0, tap_step_ = 0;  // of blocks
  std::vector<int32_t> places_;  // of (map, channel) in a block
  DType plain_type_ = DType::f32, blocked_type_ = DType::f32;
};

}  // namespace nnl
#endif

// SPDX-License-Identifier: Apache-2.0
#ifdef NNL_ONEDNN
#include "blocked_weights.h"

#include <algorithm>

#include "nnl/threads.h"
#include "vector16.h"

namespace nnl {
namespace {

using dnnl::memory;

// a and b taking turns.
inline void store_pairs(bf16* p, const v16& a, const v16& b) {
  uint16_t x[16], y[16];
  store16(reinterpret_cast<bf16*>(x), a);
  store16(reinterpret_cast<bf16*>(y), b);
  for (int i = 0; i < 16; ++i) {
    p[2 * i].value = x[i];
    p[2 * i + 1].value = y[i];
  }
}
inline void store_pairs(float* p, const v16& a, const v16& b) {
  for (int i = 0; i < 16; ++i) {
    p[2 * i] = a[i];
    p[2 * i + 1] = b[i];
  }
}

// Values of a block, with all its taps: larger ones are left to oneDNN.
constexpr int64_t kLargest = 32 * 1024;

bool type_of(const memory::desc& d, DType& type) {
  if (d.get_data_type() == memory::data_type::f32) return type = DType::f32, true;
  if (d.get_data_type() == memory::data_type::bf16) return type = DType::bf16, true;
  return false;
}

}  // namespace

BlockedWeights::BlockedWeights(const memory::desc& plain, const memory::desc& blocked,
                               bool groups) {
  if (plain.get_inner_nblks() != 0 || !type_of(plain, plain_type_) ||
      !type_of(blocked, blocked_type_))
    return;
  const auto dims = plain.get_dims(), from = plain.get_strides(), to = blocked.get_strides();
  const int o = groups ? 1 : 0, i = o + 1;
  int64_t dense = 1;
  for (size_t a = dims.size(); a-- > 0; dense *= dims[a])
    if (dims[a] > 1 && from[a] != dense) return;
  taps_ = 1;
  for (size_t a = dims.size(); a-- > static_cast<size_t>(i) + 1;) {
    if (tap_step_ == 0) tap_step_ = to[a];
    if (dims[a] > 1 && to[a] != taps_ * tap_step_) return;
    taps_ *= dims[a];
  }
  const auto blocks = blocked.get_inner_blks(), axes = blocked.get_inner_idxs();
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (axes[b] == o)
      map_block_ *= blocks[b];
    else if (axes[b] == i)
      channel_block_ *= blocks[b];
    else
      return;
  }
  if (map_block_ * channel_block_ == 1 ||
      std::max<int64_t>(map_block_ * channel_block_, 256) * taps_ > kLargest)
    return;
  groups_ = groups ? dims[0] : 1;
  group_step_ = groups ? to[0] : 0;
  const auto at = static_cast<size_t>(o);
  maps_ = dims[at], channels_ = dims[at + 1];
  map_step_ = to[at], channel_step_ = to[at + 1];
  order_.resize(static_cast<size_t>(map_block_ * channel_block_));
  place_.resize(order_.size());
  for (size_t e = 0; e < order_.size(); ++e) {
    auto rest = static_cast<int64_t>(e);
    int64_t map = 0, channel = 0, map_step = 1, channel_step = 1;
    for (size_t b = blocks.size(); b-- > 0; rest /= blocks[b]) {  // innermost first
      int64_t& index = axes[b] == o ? map : channel;
      int64_t& step = axes[b] == o ? map_step : channel_step;
      index += rest % blocks[b] * step;
      step *= blocks[b];
    }
    const int64_t at = map * channel_block_ + channel;
    order_[e] = static_cast<int32_t>(at * taps_);
    place_[static_cast<size_t>(at)] = static_cast<int32_t>(e);
  }
  const size_t n = blocks.size();
  if (axes[n - 1] == o && blocks[n - 1] % 16 == 0)
    lane_step_ = 1;
  else if (n > 1 && axes[n - 1] == i && blocks[n - 1] == 2 && axes[n - 2] == o &&
           blocks[n - 2] % 16 == 0)
    lane_step_ = 2;
  ready_ = true;
}

template <class Plain, class Blocked, bool back>
void BlockedWeights::move(const void* from, void* to) const {
  const int64_t map_blocks = (maps_ + map_block_ - 1) / map_block_;
  const int64_t channel_blocks = (channels_ + channel_block_ - 1) / channel_block_;
  const int64_t size = map_block_ * channel_block_, row = channel_block_ * taps_;
  const int64_t work = size * taps_;
  const int32_t* order = order_.data();
  parallel_for(
      groups_ * map_blocks * channel_blocks, 1 + (1 << 15) / work, [=](int64_t begin, int64_t end) {
        alignas(64) float values[kLargest];  // (map, channel, tap)
        for (int64_t b = begin; b < end; ++b) {
          const int64_t g = b / (map_blocks * channel_blocks);
          const int64_t mb = b / channel_blocks % map_blocks, cb = b % channel_blocks;
          const int64_t maps = std::min(map_block_, maps_ - mb * map_block_);
          const int64_t width = std::min(channel_block_, channels_ - cb * channel_block_) * taps_;
          const int64_t plain =
              ((g * maps_ + mb * map_block_) * channels_ + cb * channel_block_) * taps_;
          const int64_t blocked = g * group_step_ + mb * map_step_ + cb * channel_step_;
          if constexpr (back) {
            auto* x = static_cast<const Blocked*>(from) + blocked;
            for (int64_t t = 0; t < taps_; ++t)
              for (int64_t e = 0; e < size; ++e)
                values[order[e] + t] = to_float(x[t * tap_step_ + e]);
            auto* y = static_cast<Plain*>(to) + plain;
            for (int64_t m = 0; m < maps; ++m)
              store(values + m * row, y + m * channels_ * taps_, width);
          } else {
            if (maps < map_block_ || width < row) std::fill(values, values + work, 0.0f);
            auto* x = static_cast<const Plain*>(from) + plain;
            for (int64_t m = 0; m < maps; ++m)
              load(x + m * channels_ * taps_, values + m * row, width);
            auto* y = static_cast<Blocked*>(to) + blocked;
            for (int64_t t = 0; t < taps_; ++t)
#pragma omp simd
              for (int64_t e = 0; e < size; ++e)
                y[t * tap_step_ + e] = from_float<Blocked>(values[order[e] + t]);
          }
        }
      });
}

// 16 maps by 16 channels at a time, with all taps.
template <class Plain, class Blocked, bool back>
void BlockedWeights::move_lanes(const void* from, void* to) const {
  const auto up = [](int64_t n, int64_t to_multiple_of) {
    return (n + to_multiple_of - 1) / to_multiple_of * to_multiple_of;
  };
  const int64_t all_maps = up(maps_, map_block_), all_channels = up(channels_, channel_block_);
  const int64_t map_tiles = all_maps / 16, channel_tiles = up(all_channels, 16) / 16;
  const int64_t row = channels_ * taps_, work = 256 * taps_;
  parallel_for(
      groups_ * map_tiles * channel_tiles, 1 + (1 << 15) / work, [=](int64_t begin, int64_t end) {
        v16 lanes[kLargest / 16];  // (channel, tap), each 16 maps
        for (int64_t b = begin; b < end; ++b) {
          const int64_t g = b / (map_tiles * channel_tiles);
          const int64_t m0 = b / channel_tiles % map_tiles * 16, c0 = b % channel_tiles * 16;
          const int64_t maps = std::clamp<int64_t>(maps_ - m0, 0, 16);
          const int64_t width = std::clamp<int64_t>(channels_ - c0, 0, 16) * taps_;
          const int64_t channels = std::min<int64_t>(16, all_channels - c0);
          const int64_t plain = ((g * maps_ + m0) * channels_ + c0) * taps_;
          const auto place = [&](int64_t c, int64_t t) {  // of 16 maps in the blocked weights
            const int64_t e = m0 % map_block_ * channel_block_ + c % channel_block_;
            return g * group_step_ + m0 / map_block_ * map_step_ +
                   c / channel_block_ * channel_step_ + t * tap_step_ +
                   place_[static_cast<size_t>(e)];
          };
          if constexpr (back) {
            auto* x = static_cast<const Blocked*>(from);
            for (int64_t c = 0; c < channels; ++c)
              for (int64_t t = 0; t < taps_; ++t)
                load16(x + place(c0 + c, t), lanes[c * taps_ + t]);
            auto* y = static_cast<Plain*>(to) + plain;
            for (int64_t w = 0; w < width; w += 16) {
              transpose16(lanes + w);
              for (int64_t m = 0; m < maps; ++m) {
                if (w + 16 <= width)
                  store16(y + m * row + w, lanes[w + m]);
                else
                  store_some(y + m * row + w, width - w, lanes[w + m]);
              }
            }
          } else {
            auto* x = static_cast<const Plain*>(from) + plain;
            for (int64_t w = 0; w < 16 * taps_; w += 16) {
              for (int64_t m = 0; m < 16; ++m) {
                if (m < maps && w + 16 <= width)
                  load16(x + m * row + w, lanes[w + m]);
                else if (m < maps && w < width)
                  load_some(x + m * row + w, width - w, lanes[w + m]);
                else
                  lanes[w + m] = v16{};
              }
              transpose16(lanes + w);
            }
            auto* y = static_cast<Blocked*>(to);
            if (lane_step_ == 1) {
              for (int64_t c = 0; c < channels; ++c)
                for (int64_t t = 0; t < taps_; ++t)
                  store16(y + place(c0 + c, t), lanes[c * taps_ + t]);
            } else {
              for (int64_t c = 0; c < channels; c += 2)
                for (int64_t t = 0; t < taps_; ++t)
                  store_pairs(y + place(c0 + c, t), lanes[c * taps_ + t],
                              lanes[(c + 1) * taps_ + t]);
            }
          }
        }
      });
}

template <bool back>
void BlockedWeights::dispatch(const void* from, void* to) const {
  const bool lanes = lane_step_ == 1 || (lane_step_ == 2 && !back);
  auto run = [&](auto plain, auto blocked) {
    using Plain = decltype(plain);
    using Blocked = decltype(blocked);
    return lanes ? move_lanes<Plain, Blocked, back>(from, to)
                 : move<Plain, Blocked, back>(from, to);
  };
  const bool half = plain_type_ == DType::bf16;
  if (blocked_type_ == DType::bf16) return half ? run(bf16{}, bf16{}) : run(float{}, bf16{});
  return half ? run(bf16{}, float{}) : run(float{}, float{});
}

void BlockedWeights::block(const void* plain, void* blocked) const {
  dispatch<false>(plain, blocked);
}

void BlockedWeights::unblock(const void* blocked, void* plain) const {
  dispatch<true>(blocked, plain);
}

}  // namespace nnl
#endif

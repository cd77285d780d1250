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
  bf16 first[16], second[16];
  store16(first, a);
  store16(second, b);
  u16x pairs;
  for (int i = 0; i < 16; ++i)
    pairs[i] = first[i].value | static_cast<uint32_t>(second[i].value) << 16;
  std::memcpy(p, &pairs, 64);
}
inline void store_pairs(float* p, const v16& a, const v16& b) {
  for (int i = 0; i < 16; ++i) {
    p[2 * i] = a[i];
    p[2 * i + 1] = b[i];
  }
}

// Larger kernels are left to oneDNN: a tile is kept on the stack.
constexpr int64_t kMostTaps = 128;

bool type_of(const memory::desc& d, DType& type) {
  if (d.get_data_type() == memory::data_type::f32) return type = DType::f32, true;
  if (d.get_data_type() == memory::data_type::bf16) return type = DType::bf16, true;
  return false;
}

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Values [w, w + 16) of rows that lie `step` apart, as columns. Rows that do not exist read as 0,
// and so does what lies after `width`, unless that is `free` to be anything: then whole vectors
// are read wherever the weights have not ended.
template <class T>
inline void load_transposed(const T* x, int64_t step, int64_t rows, int64_t w, int64_t width,
                            bool free, const T* end, v16* out) {
  for (int64_t r = 0; r < 16; ++r) {
    const T* from = x + r * step + w;
    if (r < rows && (w + 16 <= width || (free && from + 16 <= end)))
      load16(from, out[r]);
    else if (r < rows && w < width)
      load_some(from, width - w, out[r]);
    else
      out[r] = v16{};
  }
  transpose16(out);
}

}  // namespace

BlockedWeights::BlockedWeights(const memory::desc& plain, const memory::desc& blocked,
                               bool groups) {
  const int o = groups ? 1 : 0, i = o + 1;
  tiled_ = plain.get_inner_nblks() != 0;
  if (!type_of(plain, plain_type_) || !type_of(blocked, blocked_type_) ||
      !read_taps(plain, blocked, static_cast<size_t>(i) + 1))
    return;
  const auto dims = plain.get_dims(), to = blocked.get_strides();
  const auto at = static_cast<size_t>(o);
  groups_ = groups ? dims[0] : 1;
  group_step_ = groups ? to[0] : 0;
  maps_ = dims[at], channels_ = dims[at + 1];
  map_step_ = to[at], channel_step_ = to[at + 1];
  if (!read_blocks(blocked, o, i)) lanes_ = Lanes::none;
}

// False unless the taps of both lie in one run, and the plain weights in row-major order.
bool BlockedWeights::read_taps(const memory::desc& plain, const memory::desc& blocked,
                               size_t first) {
  const auto dims = plain.get_dims(), from = plain.get_strides(), to = blocked.get_strides();
  int64_t dense = 1;
  for (size_t a = dims.size(); a-- > 0 && !tiled_; dense *= dims[a])
    if (dims[a] > 1 && from[a] != dense) return false;
  tap_step_ = to.back();
  for (size_t a = dims.size(); a-- > first; taps_ *= dims[a])
    if (dims[a] > 1 && to[a] != taps_ * tap_step_) return false;
  return taps_ <= kMostTaps;
}

bool BlockedWeights::read_blocks(const memory::desc& blocked, int o, int i) {
  const auto blocks = blocked.get_inner_blks(), axes = blocked.get_inner_idxs();
  const size_t n = blocks.size();
  if (n == 0) return false;
  for (size_t b = 0; b < n; ++b) {
    if (axes[b] != o && axes[b] != i) return false;
    (axes[b] == o ? map_block_ : channel_block_) *= blocks[b];
  }
  all_maps_ = round_up(maps_, map_block_);
  all_channels_ = round_up(channels_, channel_block_);
  places_.resize(static_cast<size_t>(map_block_ * channel_block_));
  for (size_t e = 0; e < places_.size(); ++e) {
    auto rest = static_cast<int64_t>(e);
    int64_t map = 0, channel = 0, map_step = 1, channel_step = 1;
    for (size_t b = n; b-- > 0; rest /= blocks[b]) {  // innermost first
      int64_t& index = axes[b] == o ? map : channel;
      int64_t& step = axes[b] == o ? map_step : channel_step;
      index += rest % blocks[b] * step;
      step *= blocks[b];
    }
    places_[static_cast<size_t>(map * channel_block_ + channel)] = static_cast<int32_t>(e);
  }
  size_t lane = n - 1;
  if (blocks[lane] == 2 && n > 1 && axes[n - 2] != axes[n - 1]) {
    lane_step_ = 2;
    --lane;
  }
  lanes_ = axes[lane] == o ? Lanes::maps : Lanes::channels;
  return blocks[lane] % 16 == 0;
}

// 16 maps by 16 channels at a time, with all taps.
template <class Plain, class Blocked>
void BlockedWeights::block_maps(const Plain* from, Blocked* to) const {
  const int64_t map_tiles = all_maps_ / 16, channel_tiles = round_up(all_channels_, 16) / 16;
  const int64_t row = channels_ * taps_;
  // in locals: the compiler must take a store for a change of any member
  const int64_t taps = taps_, tap_step = tap_step_, lane_step = lane_step_;
  const Plain* end_of = from + groups_ * maps_ * channels_ * taps_;
  parallel_for(
      groups_ * map_tiles * channel_tiles, 1 + 128 / taps_, [=](int64_t begin, int64_t end) {
        v16 lanes[16 * kMostTaps];  // (channel, tap), each 16 maps
        for (int64_t b = begin; b < end; ++b) {
          const int64_t g = b / (map_tiles * channel_tiles);
          const int64_t m = b / channel_tiles % map_tiles * 16, c = b % channel_tiles * 16;
          const Plain* x = from + ((g * maps_ + m) * channels_ + c) * taps_;
          const int64_t width = std::min<int64_t>(channels_ - c, 16) * taps_;
          for (int64_t w = 0; w < 16 * taps_; w += 16)
            load_transposed(x, row, maps_ - m, w, width, false, end_of, lanes + w);
          for (int64_t j = 0; j < std::min<int64_t>(16, all_channels_ - c); j += lane_step) {
            Blocked* y = to + place(g, m, c + j, 0);
            for (int64_t t = 0; t < taps; ++t, y += tap_step)
              if (lane_step == 1)
                store16(y, lanes[j * taps + t]);
              else
                store_pairs(y, lanes[j * taps + t], lanes[(j + 1) * taps + t]);
          }
        }
      });
}

// 16 channels of a map, or of two maps, at a time, with all taps.
template <class Plain, class Blocked>
void BlockedWeights::block_channels(const Plain* from, Blocked* to) const {
  const int64_t map_tiles = round_up(all_maps_, lane_step_) / lane_step_;
  const int64_t channel_tiles = all_channels_ / 16;
  // in locals: the compiler must take a store for a change of any member
  const int64_t taps = taps_, tap_step = tap_step_, lane_step = lane_step_;
  const Plain* end_of = from + groups_ * maps_ * channels_ * taps_;
  parallel_for(
      groups_ * map_tiles * channel_tiles, 1 + 1024 / taps_, [=](int64_t begin, int64_t end) {
        v16 lanes[2][round_up(kMostTaps, 16)];  // (map, tap), each 16 channels
        for (int64_t b = begin; b < end; ++b) {
          const int64_t g = b / (map_tiles * channel_tiles);
          const int64_t m = b / channel_tiles % map_tiles * lane_step_, c = b % channel_tiles * 16;
          for (int64_t p = 0; p < lane_step; ++p) {
            const Plain* x = from + ((g * maps_ + m + p) * channels_ + c) * taps_;
            const int64_t channels = m + p < maps_ ? channels_ - c : 0;
            if (taps == 1 && channels >= 16)
              load16(x, lanes[p][0]);
            else
              for (int64_t t = 0; t < taps; t += 16)
                load_transposed(x, taps, channels, t, taps, true, end_of, lanes[p] + t);
          }
          Blocked* y = to + place(g, m, c, 0);
          for (int64_t t = 0; t < taps; ++t, y += tap_step)
            if (lane_step == 1)
              store16(y, lanes[0][t]);
            else
              store_pairs(y, lanes[0][t], lanes[1][t]);
        }
      });
}

template <class Plain, class Blocked>
void BlockedWeights::unblock_maps(const Blocked* from, Plain* to) const {
  const int64_t map_tiles = (maps_ + 15) / 16, channel_tiles = (channels_ + 15) / 16;
  const int64_t row = channels_ * taps_;
  parallel_for(
      groups_ * map_tiles * channel_tiles, 1 + 128 / taps_, [=](int64_t begin, int64_t end) {
        v16 lanes[16 * kMostTaps];
        for (int64_t b = begin; b < end; ++b) {
          const int64_t g = b / (map_tiles * channel_tiles);
          const int64_t m = b / channel_tiles % map_tiles * 16, c = b % channel_tiles * 16;
          const int64_t channels = std::min<int64_t>(channels_ - c, 16), width = channels * taps_;
          for (int64_t j = 0; j < channels; ++j)
            for (int64_t t = 0; t < taps_; ++t)
              load16(from + place(g, m, c + j, t), lanes[j * taps_ + t]);
          Plain* y = to + ((g * maps_ + m) * channels_ + c) * taps_;
          for (int64_t w = 0; w < width; w += 16) {
            transpose16(lanes + w);
            for (int64_t r = 0; r < std::min<int64_t>(16, maps_ - m); ++r) {
              if (w + 16 <= width)
                store16(y + r * row + w, lanes[w + r]);
              else
                store_some(y + r * row + w, width - w, lanes[w + r]);
            }
          }
        }
      });
}

// Some tiles that lie side by side in a block, for one tap: rows of them are runs of the block.
template <class Tiled, class Blocked>
void BlockedWeights::move_tiles(const Tiled* from, Blocked* to) const {
  constexpr int64_t most = 4;  // tiles at a time
  const bool maps = lanes_ == Lanes::maps;
  const int64_t map_tiles = maps_ / 16, channel_tiles = channels_ / 16;
  const int64_t side = (maps ? map_block_ : channel_block_) / 16;  // tiles along the lanes
  const int64_t group = side % most == 0 ? most : side % 2 == 0 ? 2 : 1;
  const int64_t lane_tiles = (maps ? all_maps_ : all_channels_) / 16 / group;
  const int64_t others = maps ? all_channels_ : all_maps_, rows = (others + 15) / 16;
  const int64_t taps = taps_, step = lane_step_;
  parallel_for(groups_ * lane_tiles * rows, 1 + 32 / taps, [=](int64_t begin, int64_t end) {
    v16 tiles[most][16];
    for (int64_t b = begin; b < end; ++b) {
      const int64_t g = b / (lane_tiles * rows), first = b / rows % lane_tiles * group;
      const int64_t row = b % rows, in_row = std::min<int64_t>(16, others - 16 * row);
      for (int64_t t = 0; t < taps; ++t) {
        for (int64_t k = 0; k < group; ++k) {
          const int64_t m = maps ? first + k : row, c = maps ? row : first + k;
          const bool there = m < map_tiles && c < channel_tiles;  // else it fills up a block
          const Tiled* x = from + (((g * map_tiles + m) * channel_tiles + c) * taps + t) * 256;
          for (int64_t j = 0; j < 16; ++j) {
            if (there)
              load16(x + 16 * j, tiles[k][j]);
            else
              tiles[k][j] = v16{};
          }
          if (!maps) transpose16(tiles[k]);
        }
        for (int64_t j = 0; j < in_row; j += step)
          for (int64_t k = 0; k < group; ++k) {
            const int64_t lane = 16 * (first + k), other = 16 * row + j;
            Blocked* y = to + (maps ? place(g, lane, other, t) : place(g, other, lane, t));
            if (step == 1)
              store16(y, tiles[k][j]);
            else
              store_pairs(y, tiles[k][j], tiles[k][j + 1]);
          }
      }
    }
  });
}

void BlockedWeights::block(const void* plain, void* blocked) const {
  const auto run = [&](auto from_type, auto to_type) {
    auto* from = static_cast<const decltype(from_type)*>(plain);
    auto* to = static_cast<decltype(to_type)*>(blocked);
    if (tiled_) return move_tiles(from, to);
    lanes_ == Lanes::maps ? block_maps(from, to) : block_channels(from, to);
  };
  const bool half = plain_type_ == DType::bf16;
  if (blocked_type_ == DType::bf16) return half ? run(bf16{}, bf16{}) : run(float{}, bf16{});
  half ? run(bf16{}, float{}) : run(float{}, float{});
}

void BlockedWeights::unblock(const void* blocked, void* plain) const {
  const auto run = [&](auto from_type, auto to_type) {
    unblock_maps(static_cast<const decltype(from_type)*>(blocked),
                 static_cast<decltype(to_type)*>(plain));
  };
  const bool half = plain_type_ == DType::bf16;
  if (blocked_type_ == DType::bf16) return half ? run(bf16{}, bf16{}) : run(bf16{}, float{});
  half ? run(float{}, bf16{}) : run(float{}, float{});
}

}  // namespace nnl
#endif

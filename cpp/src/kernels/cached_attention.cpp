// SPDX-License-Identifier: Apache-2.0
// cached_attention: (query, key, value, key_cache, value_cache, positions, counts?, slots?, mask?)
//   -> y, which writes the caches. query (B, H, T, d), key (B, G, T, d), value (B, G, T, e), caches
//   (S, G, C, d) and (S, G, C, e); positions, counts and slots (B). Row b writes its first
//   counts[b] (T if left out) keys and values into slot slots[b] (b) from positions[b] on, and
//   attends to what is there then: query i to the keys up to positions[b] + i. Attributes: window,
//   soft_cap and scale, 0 for 1 / sqrt(d); mask as of attention, for the keys of a slot.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention.h"
#include "line.h"
#include "nnl/errors.h"
#include "nnl/threads.h"

namespace nnl {
namespace {
using namespace attention;

enum Input { kQuery, kKey, kValue, kKeyCache, kValueCache, kPositions, kCounts, kSlots, kMask };

class CachedAttention : public Kernel {
 public:
  CachedAttention(const Signature& s, const Sizes& z)
      : s_(s),
        z_(z),
        places_(s.in[kKeyCache].shape[0]),
        forward_(z, s.in[kQuery].dtype, s.in[kKeyCache].dtype, s.in[kValueCache].dtype,
                 s.out[0].dtype, space_) {
    line_ = space_.floats(std::max(z.depth, z.value_depth));
  }

  size_t workspace() const override { return space_.size(); }

  void run(const Buffers& b) override {
    Given g{b.in[kQuery],
            b.in[kKeyCache],
            b.in[kValueCache],
            s_.given(kMask) ? b.in[kMask] : nullptr,
            {},
            whole(b, kPositions),
            {},
            whole(b, kCounts),
            whole(b, kSlots)};
    for (int64_t i = 0; i < z_.batch; ++i) check(g, i);
    for (int64_t i = 0; i < z_.batch; ++i) {
      const Sample sample = z_.sample(g, i);
      append(b, kKey, kKeyCache, z_.depth, i, sample);
      append(b, kValue, kValueCache, z_.value_depth, i, sample);
    }
    forward_.run(g, b.out[0], nullptr, b.workspace);
  }

 private:
  Whole whole(const Buffers& b, size_t i) const {
    return s_.given(i) ? Whole{b.in[i], s_.in[i].dtype} : Whole{};
  }

  void check(const Given& g, int64_t i) const {
    const Sample s = z_.sample(g, i);
    const auto fail = [i](const char* what, int64_t n, const std::string& wanted) {
      throw ValueError("cached_attention: row " + std::to_string(i) + what + std::to_string(n) +
                       wanted);
    };
    if (s.offset < 0) fail(" has the position ", s.offset, ", wanted at least 0");
    if (s.count < 0 || s.count > z_.queries)
      fail(" has the count ", s.count, ", wanted 0 to " + std::to_string(z_.queries));
    if (s.offset + s.count > z_.keys)
      fail(" would hold ", s.offset + s.count,
           " keys, more than the " + std::to_string(z_.keys) + " of key_cache");
    if (s.slot < 0 || s.slot >= places_)
      fail(" has the slot ", s.slot, ", wanted 0 to " + std::to_string(places_ - 1));
  }

  void append(const Buffers& b, size_t from, size_t to, int64_t width, int64_t row,
              const Sample& s) const {
    const DType given = s_.in[from].dtype, kept = s_.in[to].dtype;
    const auto at = [](void* p, DType type, int64_t i) {
      return static_cast<char*>(p) + i * static_cast<int64_t>(bytes_of(type));
    };
    for (int64_t h = 0; h < z_.key_heads; ++h) {
      const int64_t source = (row * z_.key_heads + h) * z_.queries;
      const int64_t place = (s.slot * z_.key_heads + h) * z_.keys + s.offset;
      const void* x = at(b.in[from], given, source * width);
      void* y = at(b.in[to], kept, place * width);
      if (given == kept) {
        std::memcpy(y, x, static_cast<size_t>(s.count * width) * bytes_of(kept));
        continue;
      }
      float* line = Space::at(b.workspace, line_);
      for (int64_t i = 0; i < s.count; ++i) {
        load_any(given, x, i * width, line, width);
        store_any(kept, line, y, i * width, width);
      }
    }
  }

  Signature s_;
  Sizes z_;
  int64_t places_;
  Space space_;
  Forward forward_;
  size_t line_;
};

std::unique_ptr<Kernel> setup(const Signature& s) {
  for (size_t i = 0; i < s.in.size(); ++i) {
    const bool number = i == kPositions || i == kCounts || i == kSlots;
    if (!s.given(i)) continue;
    if (s.in[i].layout != Layout::plain) return nullptr;
    if (number ? !is_integer(s.in[i].dtype) : !is_real(s.in[i].dtype)) return nullptr;
  }
  if (s.in.size() <= kPositions || !is_real(s.out[0].dtype) || s.out[0].layout != Layout::plain)
    return nullptr;
  const Shape &q = s.in[kQuery].shape, &k = s.in[kKeyCache].shape;
  Sizes z{};
  z.batch = q[0], z.heads = q[1], z.queries = q[2], z.depth = q[3];
  z.key_heads = k[1], z.keys = k[2], z.value_depth = s.in[kValueCache].shape[3];
  z.causal = true;
  z.window = s.attributes.integer("window");
  z.soft_cap = static_cast<float>(s.attributes.number("soft_cap"));
  z.scale = static_cast<float>(s.attributes.number("scale"));
  if (z.scale == 0.0f)
    z.scale = 1.0f / std::sqrt(static_cast<float>(std::max<int64_t>(z.depth, 1)));
  if (!mask_of(s, kMask, false, &z)) return nullptr;
  return std::make_unique<CachedAttention>(s, z);
}

const Registration registration("cached_attention", setup);

}  // namespace
}  // namespace nnl

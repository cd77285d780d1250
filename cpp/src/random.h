// SPDX-License-Identifier: Apache-2.0
// Random words: Philox 4x64-10, the numbers of numpy.random.Philox(key, counter).random_raw().
//
// Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011.
#pragma once
#include <cstdint>

namespace nnl {

// A stretch of the stream of one key: block i is four words, and depends on nothing but key,
// counter and i, so that threads can draw parts of an array.
class Philox {
 public:
  Philox(uint64_t key, uint64_t counter) : key_(key), counter_(counter) {}

  // Takes `words` words from the state of a random function, (key, counter), which goes on to the
  // next block.
  static Philox take(uint64_t* state, int64_t words) {
    const Philox p(state[0], state[1]);
    state[1] += static_cast<uint64_t>((words + 3) / 4);
    return p;
  }

  void block(uint64_t i, uint64_t* y) const {
    constexpr uint64_t m0 = 0xD2E7470EE14C6C93u, m1 = 0xCA5A826395121157u;
    constexpr uint64_t w0 = 0x9E3779B97F4A7C15u, w1 = 0xBB67AE8584CAA73Bu;
    // numpy counts up before it draws; the counter has 256 bits
    uint64_t c0 = counter_ + i + 1, c1 = c0 <= i ? 1 : 0, c2 = 0, c3 = 0, k0 = key_, k1 = 0;
    for (int round = 0; round < 10; ++round) {
      const unsigned __int128 a = static_cast<unsigned __int128>(m0) * c0;
      const unsigned __int128 b = static_cast<unsigned __int128>(m1) * c2;
      c0 = static_cast<uint64_t>(b >> 64) ^ c1 ^ k0;
      c1 = static_cast<uint64_t>(b);
      c2 = static_cast<uint64_t>(a >> 64) ^ c3 ^ k1;
      c3 = static_cast<uint64_t>(a);
      k0 += w0;
      k1 += w1;
    }
    y[0] = c0, y[1] = c1, y[2] = c2, y[3] = c3;
  }

  // Words begin .. begin + n - 1.
  void words(int64_t begin, int64_t n, uint64_t* y) const {
    for (; begin % 4 == 0 && n >= 4; begin += 4, n -= 4, y += 4)
      block(static_cast<uint64_t>(begin) / 4, y);
    uint64_t w[4];
    for (int64_t i = begin; i < begin + n;) {
      block(static_cast<uint64_t>(i) / 4, w);
      do y[i - begin] = w[i & 3];
      while (++i & 3 && i < begin + n);
    }
  }

  // Half words 8 i .. 8 i + 7 of 32 bits, the lower half of a word first.
  void halves(int64_t i, uint32_t* y) const {
    uint64_t w[4];
    block(static_cast<uint64_t>(i), w);
    for (int k = 0; k < 4; ++k) {
      y[2 * k] = static_cast<uint32_t>(w[k]);
      y[2 * k + 1] = static_cast<uint32_t>(w[k] >> 32);
    }
  }

 private:
  uint64_t key_, counter_;
};

// Uniform numbers in [0, 1): of 53 bits from a word, of 24 bits from a half word.
inline double uniform(uint64_t word) { return static_cast<double>(word >> 11) * 0x1p-53; }
inline float uniform(uint32_t half) { return static_cast<float>(half >> 8) * 0x1p-24f; }

}  // namespace nnl

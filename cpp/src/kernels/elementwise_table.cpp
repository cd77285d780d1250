// SPDX-License-Identifier: Apache-2.0
// Element-wise programs of one array of 8 bits, and numbers: what comes out for each of its 256
// values is computed at every run, and then looked up.
#include <cstdint>
#include <numeric>

#include "elementwise_kernel.h"
#include "nnl/threads.h"
#if defined(__AVX512VBMI__) && defined(__AVX512BW__)
#include <immintrin.h>
#endif

namespace nnl {
namespace {

constexpr int64_t values = 256;
constexpr int64_t least = 2048;  // elements; a table for fewer costs more than it saves

bool is_byte(const Spec& s) { return s.dtype == DType::i8 || s.dtype == DType::u8; }

// y[i] = table[x[i]]
void look_up(const uint8_t* table, const uint8_t* x, uint8_t* y, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512VBMI__) && defined(__AVX512BW__)
  const __m512i t0 = _mm512_loadu_si512(table), t1 = _mm512_loadu_si512(table + 64),
                t2 = _mm512_loadu_si512(table + 128), t3 = _mm512_loadu_si512(table + 192);
  for (; i + 64 <= n; i += 64) {
    const __m512i at = _mm512_loadu_si512(x + i);
    const __m512i low = _mm512_permutex2var_epi8(t0, at, t1);  // by the lower 7 bits
    const __m512i high = _mm512_permutex2var_epi8(t2, at, t3);
    _mm512_storeu_si512(y + i, _mm512_mask_blend_epi8(_mm512_movepi8_mask(at), low, high));
  }
#endif
  for (; i < n; ++i) y[i] = table[x[i]];
}

class Table : public Kernel {
 public:
  Table(size_t at, const std::vector<Spec>& outs, int64_t n, std::unique_ptr<Kernel> program,
        size_t inputs)
      : at_(at), n_(n), outs_(outs.size()), inputs_(inputs), program_(std::move(program)) {
    std::iota(all_, all_ + values, uint8_t{0});
  }

  size_t workspace() const override { return program_->workspace(); }
  bool may_overwrite(size_t, size_t i) const override { return i == at_ && outs_ == 1; }

  void run(const Buffers& b) override {
    alignas(64) uint8_t tables[most][values];
    void *ins[most], *outs[most];
    for (size_t i = 0; i < inputs_; ++i) ins[i] = i == at_ ? all_ : b.in[i];
    for (size_t o = 0; o < outs_; ++o) outs[o] = tables[o];
    program_->run({ins, outs, b.workspace});
    const uint8_t* x = b.input<uint8_t>(at_);
    parallel_for(n_, 1 << 17, [&](int64_t begin, int64_t end) {
      for (size_t o = 0; o < outs_; ++o)
        look_up(tables[o], x + begin, b.output<uint8_t>(o) + begin, end - begin);
    });
  }

  static constexpr size_t most = 16;  // inputs or outputs

 private:
  size_t at_;
  int64_t n_;
  size_t outs_, inputs_;
  std::unique_ptr<Kernel> program_;
  uint8_t all_[values];
};

}  // namespace

std::unique_ptr<Kernel> elementwise_table(const Signature& s, const Spec& space,
                                          ElementwiseProgram program,
                                          const std::vector<int64_t>& outputs) {
  if (space.size() < least || s.in.size() > Table::most || s.out.size() > Table::most)
    return nullptr;
  for (const Spec& y : s.out)
    if (!is_byte(y) || y.shape != space.shape || y.layout != space.layout) return nullptr;
  size_t at = s.in.size();
  Signature small = s;
  for (size_t i = 0; i < s.in.size(); ++i) {
    if (!s.given(i)) return nullptr;
    if (s.in[i].size() == 1) {
      small.in[i].shape = program.shapes[i] = {};
      small.in[i].layout = Layout::plain;
      continue;
    }
    if (at != s.in.size() || !is_byte(s.in[i]) || s.in[i].shape != space.shape ||
        s.in[i].layout != space.layout || program.shapes[i] != space.shape)
      return nullptr;
    at = i;
    small.in[i].shape = program.shapes[i] = {values};
    small.in[i].layout = Layout::plain;
  }
  if (at == s.in.size()) return nullptr;
  for (Spec& y : small.out) y.shape = {values}, y.layout = Layout::plain;
  auto inner = make_elementwise(small, small.out[0], program, outputs);
  if (!inner) return nullptr;
  return std::make_unique<Table>(at, s.out, space.size(), std::move(inner), s.in.size());
}

}  // namespace nnl

// SPDX-License-Identifier: Apache-2.0
// What the kernels that only move data share.
#pragma once
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "convert.h"
#include "nnl/kernel.h"
#include "nnl/threads.h"
#include "strided_copy.h"

namespace nnl {

// Copies from inputs to outputs, one after the other, after outputs that are not covered by them
// have been filled.
class Moves : public Kernel {
 public:
  void add(size_t input, size_t output, StridedCopy copy) {
    moves_.push_back({input, output, std::move(copy)});
  }

  void fill(size_t output, const Spec& spec, double value) {
    Fill f{output, spec.size(), static_cast<int64_t>(bytes_of(spec.dtype)), {}, value == 0.0};
    conversion(DType::f64, spec.dtype)(&value, f.element, 1);
    fills_.push_back(f);
  }

  void run(const Buffers& b) override {
    for (const Fill& f : fills_) {
      char* y = b.output<char>(f.output);
      parallel_for(f.n, 1 << 16, [&](int64_t begin, int64_t end) {
        if (f.zero) {
          std::memset(y + begin * f.bytes, 0, static_cast<size_t>((end - begin) * f.bytes));
          return;
        }
        if (begin == end) return;
        char* to = y + begin * f.bytes;
        const int64_t total = (end - begin) * f.bytes;
        std::memcpy(to, f.element, static_cast<size_t>(f.bytes));
        for (int64_t done = f.bytes; done < total; done += done)  // twice as much each time
          std::memcpy(to + done, to, static_cast<size_t>(std::min(done, total - done)));
      });
    }
    for (const Move& m : moves_) m.copy.run(b.in[m.input], b.out[m.output]);
  }

 private:
  struct Move {
    size_t input, output;
    StridedCopy copy;
  };
  struct Fill {
    size_t output;
    int64_t n, bytes;
    char element[8];
    bool zero;
  };
  std::vector<Move> moves_;
  std::vector<Fill> fills_;
};

}  // namespace nnl

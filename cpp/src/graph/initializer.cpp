// SPDX-License-Identifier: Apache-2.0
#include "nnl/initializer.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "arguments.h"
#include "nnl/functions.h"

namespace nnl {

namespace graph {
void seed_functions(uint64_t value);
}

namespace initializer {
namespace {

// The numbers of numpy.random.RandomState.
class Random {
 public:
  explicit Random(uint32_t seed) : words_(seed) {}

  double unit() {  // [0, 1) with 53 bits
    const uint32_t a = words_() >> 5, b = words_() >> 6;
    return (a * 67108864.0 + b) / 9007199254740992.0;
  }

  double normal() {  // Marsaglia's polar method, which gives two at a time
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    double x, y, r;
    do {
      x = 2 * unit() - 1, y = 2 * unit() - 1;
      r = x * x + y * y;
    } while (r >= 1 || r == 0);
    const double scale = std::sqrt(-2 * std::log(r) / r);
    spare_ = scale * x, has_spare_ = true;
    return scale * y;
  }

 private:
  std::mt19937 words_;
  double spare_ = 0;
  bool has_spare_ = false;
};

Random& random() {
  thread_local Random generator(313);
  return generator;
}

int64_t size_of(const Shape& shape) { return Spec{shape}.size(); }

double terms(const char* name, const Integers& kernel, int64_t maps) {
  int64_t n = maps;
  for (int64_t k : kernel) n *= k;
  if (n < 1)
    throw ValueError(std::string(name) + ": a kernel of " + std::to_string(maps) +
                     " maps has no elements");
  return static_cast<double>(n);
}

}  // namespace

void seed(uint32_t value) { random() = Random(value); }

Initializer constant(double value) {
  return [=](const Shape& shape, float* x) {
    std::fill_n(x, size_of(shape), static_cast<float>(value));
  };
}

Initializer uniform(double low, double high) {
  return [=](const Shape& shape, float* x) {
    for (int64_t n = size_of(shape), i = 0; i < n; ++i)
      x[i] = static_cast<float>(low + (high - low) * random().unit());
  };
}

Initializer normal(double sigma) {
  return [=](const Shape& shape, float* x) {
    for (int64_t n = size_of(shape), i = 0; i < n; ++i)
      x[i] = static_cast<float>(random().normal() * sigma);
  };
}

Initializer from(std::vector<float> values) {
  return [values = std::move(values)](const Shape& shape, float* x) {
    if (static_cast<int64_t>(values.size()) != size_of(shape))
      throw ValueError("initializer::from: got " + std::to_string(values.size()) +
                       " values for a parameter " + Spec{shape}.text());
    std::copy(values.begin(), values.end(), x);
  };
}

double calc_normal_std_he_forward(int64_t inmaps, int64_t, Integers kernel) {
  return std::sqrt(2 / terms("calc_normal_std_he_forward", kernel, inmaps));
}

double calc_normal_std_he_backward(int64_t, int64_t outmaps, Integers kernel) {
  return std::sqrt(2 / terms("calc_normal_std_he_backward", kernel, outmaps));
}

double calc_normal_std_glorot(int64_t inmaps, int64_t outmaps, Integers kernel) {
  return std::sqrt(2 / terms("calc_normal_std_glorot", kernel, inmaps + outmaps));
}

double calc_uniform_lim_glorot(int64_t inmaps, int64_t outmaps, Integers kernel) {
  return std::sqrt(6 / terms("calc_uniform_lim_glorot", kernel, inmaps + outmaps));
}

Initializer glorot(int64_t inmaps, int64_t outmaps, Integers kernel) {
  const double limit = calc_uniform_lim_glorot(inmaps, outmaps, std::move(kernel));
  return uniform(-limit, limit);
}

}  // namespace initializer

void seed(uint64_t value) {
  initializer::seed(static_cast<uint32_t>(value));
  graph::seed_functions(value);
}

}  // namespace nnl

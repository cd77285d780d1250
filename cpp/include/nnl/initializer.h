// SPDX-License-Identifier: Apache-2.0
// Initial values of parameters. Random ones are Python's for the same seed, bit for bit, if
// parameters are made in the same order.
#pragma once
#include <functional>

#include "nnl/variable.h"

namespace nnl {

// Fills a new array.
using Initializer = std::function<void(const Shape& shape, float* values)>;

namespace initializer {

NNL_API Initializer constant(double value);
NNL_API Initializer uniform(double low = -1, double high = 1);
NNL_API Initializer normal(double sigma = 1);
NNL_API Initializer from(std::vector<float> values);

// Standard deviations and limits for layers of inmaps and outmaps and a kernel.
NNL_API double calc_normal_std_he_forward(int64_t inmaps, int64_t outmaps, Integers kernel = {1});
NNL_API double calc_normal_std_he_backward(int64_t inmaps, int64_t outmaps, Integers kernel = {1});
NNL_API double calc_normal_std_glorot(int64_t inmaps, int64_t outmaps, Integers kernel = {1});
NNL_API double calc_uniform_lim_glorot(int64_t inmaps, int64_t outmaps, Integers kernel = {1});

// Uniform with Glorot's limits.
NNL_API Initializer glorot(int64_t inmaps, int64_t outmaps, Integers kernel = {1});

}  // namespace initializer
}  // namespace nnl

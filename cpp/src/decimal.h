// SPDX-License-Identifier: Apache-2.0
// Decimal numbers in text, read alike in every locale: programs may have set one with commas.
#pragma once
#include <clocale>
#include <cstdlib>
#ifdef __APPLE__
#include <xlocale.h>
#endif

namespace nnl {

// std::strtod, with a point.
inline double decimal(const char* text, char** end) {
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
  return strtod_l(text, end, plain);
}

}  // namespace nnl

// SPDX-License-Identifier: Apache-2.0
// Factors of small matrices as cuBLAS and cuSOLVER compute them on emulated devices.
#include <cmath>

#include "state.h"

namespace emu {
namespace {

enum Status { kOk = 0, kNotInitialized = 1, kExecutionFailed = 13 };

struct Solver {
  void* stream = nullptr;
};

template <class Real>
struct Columns {  // a matrix, column by column
  Real* at;
  int leading;
  Real& operator()(int row, int column) const { return at[row + std::int64_t{column} * leading]; }
};

template <class Real>
Columns<Real> matrix(const Memory& memory, Real* at, int n, int leading) {
  const std::size_t bytes = (static_cast<std::size_t>(n - 1) * leading + n) * sizeof(Real);
  if (n > 0 && !memory.holds(reinterpret_cast<std::uint64_t>(at), bytes))
    throw Fault("cuBLAS or cuSOLVER uses a matrix that is not memory of the device");
  return {at, leading};
}

// P A = L U in place, rows exchanged by pivots from 1 on; which pivot is 0, if any.
template <class Real>
int lower_upper(const Columns<Real>& a, int n, int* pivots) {
  int singular = 0;
  for (int k = 0; k < n; ++k) {
    int best = k;
    for (int i = k + 1; pivots != nullptr && i < n; ++i)
      if (std::abs(a(i, k)) > std::abs(a(best, k))) best = i;
    if (pivots != nullptr) pivots[k] = best + 1;
    for (int j = 0; j < n && best != k; ++j) std::swap(a(k, j), a(best, j));
    if (a(k, k) == 0) {
      if (singular == 0) singular = k + 1;
      continue;
    }
    for (int i = k + 1; i < n; ++i) {
      a(i, k) /= a(k, k);
      for (int j = k + 1; j < n; ++j) a(i, j) -= a(i, k) * a(k, j);
    }
  }
  return singular;
}

// The inverse, of what lower_upper has left.
template <class Real>
void invert(const Columns<Real>& a, const Columns<Real>& y, int n, const int* pivots) {
  for (int c = 0; c < n; ++c) {
    for (int i = 0; i < n; ++i) y(i, c) = i == c;
    for (int k = 0; pivots != nullptr && k < n; ++k) std::swap(y(k, c), y(pivots[k] - 1, c));
    for (int i = 0; i < n; ++i)
      for (int k = 0; k < i; ++k) y(i, c) -= a(i, k) * y(k, c);
    for (int i = n - 1; i >= 0; --i) {
      for (int k = i + 1; k < n; ++k) y(i, c) -= a(i, k) * y(k, c);
      y(i, c) /= a(i, i);
    }
  }
}

// A = U^T U, U in place of the upper half, or L L^T in the lower; which minor is not positive.
template <class Real>
int cholesky(const Columns<Real>& a, int n, bool upper) {
  const auto at = [&](int i, int j) -> Real& { return upper ? a(j, i) : a(i, j); };
  for (int j = 0; j < n; ++j) {
    for (int k = 0; k < j; ++k) at(j, j) -= at(j, k) * at(j, k);
    if (!(at(j, j) > 0)) return j + 1;
    at(j, j) = std::sqrt(at(j, j));
    for (int i = j + 1; i < n; ++i) {
      for (int k = 0; k < j; ++k) at(i, j) -= at(i, k) * at(j, k);
      at(i, j) /= at(j, j);
    }
  }
  return 0;
}

int queue(void* stream, const std::function<void(const Memory&)>& work) {
  const int error = call([&](State& s, Lock& lock) -> int {
    Stream* on = s.stream(stream);
    if (on == nullptr) return kInvalidResourceHandle;
    return s.enqueue(lock, *on,
                     [&s, work, device = on->device] { work(s.devices[device]->reach); });
  });
  return error == kSuccess ? kOk : kExecutionFailed;
}

template <class Real>
int factor_all(void* stream, int n, Real* const* a, int leading, int* pivots, int* info,
               int count) {
  return queue(stream, [=](const Memory& memory) {
    for (int i = 0; i < count; ++i)
      info[i] = lower_upper(matrix(memory, a[i], n, leading), n,
                            pivots == nullptr ? nullptr : pivots + std::int64_t{i} * n);
  });
}

template <class Real>
int invert_all(void* stream, int n, const Real* const* a, int leading, const int* pivots,
               Real* const* y, int y_leading, int* info, int count) {
  return queue(stream, [=](const Memory& memory) {
    for (int i = 0; i < count; ++i) {
      const auto from = matrix(memory, const_cast<Real*>(a[i]), n, leading);
      info[i] = 0;
      for (int k = n; k-- > 0;)
        if (from(k, k) == 0) info[i] = k + 1;
      if (info[i] == 0)
        invert(from, matrix(memory, y[i], n, y_leading), n,
               pivots == nullptr ? nullptr : pivots + std::int64_t{i} * n);
    }
  });
}

template <class Real>
int cholesky_all(void* stream, int uplo, int n, Real* const* a, int leading, int* info, int count) {
  return queue(stream, [=](const Memory& memory) {
    for (int i = 0; i < count; ++i)
      info[i] = cholesky(matrix(memory, a[i], n, leading), n, uplo == 1);
  });
}

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" {

int cublasGetStream_v2(void* handle, void** stream);

int cusolverDnCreate(Solver** made) {
  *made = new Solver;
  return kOk;
}

int cusolverDnDestroy(Solver* solver) {
  delete solver;
  return kOk;
}

int cusolverDnSetStream(Solver* solver, void* stream) {
  solver->stream = stream;
  return kOk;
}

int cusolverDnGetStream(Solver* solver, void** stream) {
  *stream = solver->stream;
  return kOk;
}

int cusolverGetProperty(int which, int* value) {
  *value = which == 0 ? 12 : 0;
  return kOk;
}

#define FACTORS(LETTER, REAL)                                                                      \
  int cublas##LETTER##getrfBatched(void* handle, int n, REAL* const* a, int leading, int* pivots,  \
                                   int* info, int count) {                                         \
    void* stream = nullptr;                                                                        \
    cublasGetStream_v2(handle, &stream);                                                           \
    return factor_all(stream, n, a, leading, pivots, info, count);                                 \
  }                                                                                                \
  int cublas##LETTER##getriBatched(void* handle, int n, const REAL* const* a, int leading,         \
                                   const int* pivots, REAL* const* y, int y_leading, int* info,    \
                                   int count) {                                                    \
    void* stream = nullptr;                                                                        \
    cublasGetStream_v2(handle, &stream);                                                           \
    return invert_all(stream, n, a, leading, pivots, y, y_leading, info, count);                   \
  }                                                                                                \
  int cusolverDn##LETTER##potrfBatched(Solver* solver, int uplo, int n, REAL* const* a,            \
                                       int leading, int* info, int count) {                        \
    return cholesky_all(solver->stream, uplo, n, a, leading, info, count);                         \
  }                                                                                                \
  int cusolverDn##LETTER##potrf_bufferSize(Solver*, int, int, REAL*, int, int* size) {             \
    *size = 1;                                                                                     \
    return kOk;                                                                                    \
  }                                                                                                \
  int cusolverDn##LETTER##potrf(Solver* solver, int uplo, int n, REAL* a, int leading, REAL*, int, \
                                int* info) {                                                       \
    return queue(solver->stream, [=](const Memory& memory) {                                       \
      *info = cholesky(matrix(memory, a, n, leading), n, uplo == 1);                               \
    });                                                                                            \
  }
FACTORS(S, float)
FACTORS(D, double)
#undef FACTORS

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
// cuBLAS's products of matrices on emulated devices. What is not here answers "not supported".
#include <cstring>
#include <type_traits>

#include "state.h"

namespace emu {
namespace {

enum Status {
  kOk = 0,
  kNotInitialized = 1,
  kInvalid = 7,
  kExecutionFailed = 13,
  kUnsupported = 15
};
enum Type { kFloat = 0, kDouble = 1, kHalf = 2, kBfloat = 14 };
enum Operation { kAsItLies = 0, kTransposed = 1, kConjugated = 2 };

constexpr std::size_t kSpoiled = 4096;  // bytes at both ends of the workspace

struct Handle {
  int device;
  void* stream = nullptr;
  int pointer_mode = 0, math_mode = 0;  // 0: factors are in host memory
  std::uint64_t workspace = 0;
  std::size_t workspace_bytes = 0;
};

std::map<Handle*, std::unique_ptr<Handle>>& handles() {
  static auto& all = *new std::map<Handle*, std::unique_ptr<Handle>>;
  return all;
}

std::size_t bytes_of(int type) {
  return type == kDouble ? 8 : type == kFloat ? 4 : type == kHalf || type == kBfloat ? 2 : 0;
}

float from_bits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

double load(const std::byte* p, int type) {
  if (type == kDouble) return *reinterpret_cast<const double*>(p);
  if (type == kFloat) return *reinterpret_cast<const float*>(p);
  if (type == kHalf) return *reinterpret_cast<const _Float16*>(p);
  return from_bits(std::uint32_t{*reinterpret_cast<const std::uint16_t*>(p)} << 16);
}

std::uint16_t to_bfloat(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (x != x) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

void store(std::byte* p, int type, double x) {
  if (type == kDouble)
    *reinterpret_cast<double*>(p) = x;
  else if (type == kFloat)
    *reinterpret_cast<float*>(p) = static_cast<float>(x);
  else if (type == kHalf)
    *reinterpret_cast<_Float16*>(p) = static_cast<_Float16>(static_cast<float>(x));
  else
    *reinterpret_cast<std::uint16_t*>(p) = to_bfloat(static_cast<float>(x));
}

struct Matrix {
  std::uint64_t address;
  int type, operation;
  std::int64_t leading, step;                // in elements
  const std::uint64_t* addresses = nullptr;  // one for each of a batch, instead
};

struct Factor {
  double value = 0;
  std::uint64_t address = 0;  // in the memory of the device, where it is to be read from

  double get() const;
  int type;
};

double Factor::get() const {
  return address == 0 ? value : load(reinterpret_cast<const std::byte*>(address), type);
}

struct Product {
  std::int64_t m, n, k, count;
  Matrix a, b, c;
  Factor alpha, beta;
  bool in_double;  // how sums are kept
  bool tf32;
};

double rounded(double x, const Product& p) {
  if (!p.tf32) return x;
  std::uint32_t bits;
  const float f = static_cast<float>(x);
  std::memcpy(&bits, &f, sizeof bits);
  return from_bits((bits + 0xFFF + (bits >> 13 & 1)) & ~std::uint32_t{0x1FFF});
}

std::byte* address_of(const Matrix& x, std::int64_t i, std::size_t span, const Memory& memory) {
  const std::uint64_t at =
      x.addresses != nullptr ? x.addresses[i] : x.address + i * x.step * bytes_of(x.type);
  if (!memory.holds(at, span))
    throw Fault("cuBLAS uses " + std::to_string(span) + " bytes at " + std::to_string(at) +
                ", which are not memory of the device");
  return reinterpret_cast<std::byte*>(at);
}

std::size_t span(const Matrix& x, std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>((columns - 1) * x.leading + rows) * bytes_of(x.type);
}

// One of a batch: c = alpha op(a) op(b) + beta c, all column by column.
template <class Sum>
void multiply(const Product& p, std::int64_t i, double alpha, double beta, const Memory& memory) {
  const bool at = p.a.operation != kAsItLies, bt = p.b.operation != kAsItLies;
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  if (p.k > 0) {
    a = address_of(p.a, i, at ? span(p.a, p.k, p.m) : span(p.a, p.m, p.k), memory);
    b = address_of(p.b, i, bt ? span(p.b, p.n, p.k) : span(p.b, p.k, p.n), memory);
  }
  std::byte* c = address_of(p.c, i, span(p.c, p.m, p.n), memory);
  const auto element = [](const std::byte* base, const Matrix& x, std::int64_t row,
                          std::int64_t column, bool turned) {
    const std::int64_t e = turned ? column + row * x.leading : row + column * x.leading;
    return load(base + e * static_cast<std::int64_t>(bytes_of(x.type)), x.type);
  };
  std::vector<Sum> left(static_cast<std::size_t>(p.m * p.k)), sums(static_cast<std::size_t>(p.m));
  for (std::int64_t q = 0; q < p.k; ++q)
    for (std::int64_t r = 0; r < p.m; ++r)
      left[q * p.m + r] = static_cast<Sum>(rounded(element(a, p.a, r, q, at), p));
  for (std::int64_t j = 0; j < p.n; ++j) {
    std::fill(sums.begin(), sums.end(), Sum{0});
    for (std::int64_t q = 0; q < p.k; ++q) {
      const Sum right = static_cast<Sum>(rounded(element(b, p.b, q, j, bt), p));
      const Sum* column = left.data() + q * p.m;
      for (std::int64_t r = 0; r < p.m; ++r) sums[r] += column[r] * right;
    }
    for (std::int64_t r = 0; r < p.m; ++r) {
      std::byte* to = c + (r + j * p.c.leading) * static_cast<std::int64_t>(bytes_of(p.c.type));
      const double old = beta == 0 ? 0 : beta * load(to, p.c.type);
      store(to, p.c.type, alpha * static_cast<double>(sums[r]) + old);
    }
  }
}

void spoil(const Handle& h, const Memory& memory) {
  if (h.workspace == 0) return;
  if (!memory.holds(h.workspace, h.workspace_bytes))
    throw Fault("cuBLAS's workspace is not memory of the device");
  const std::size_t n = std::min(kSpoiled, h.workspace_bytes);
  std::memset(reinterpret_cast<void*>(h.workspace), 0x5A, n);
  std::memset(reinterpret_cast<void*>(h.workspace + h.workspace_bytes - n), 0x5A, n);
}

bool fits(const Matrix& x, std::int64_t rows, std::int64_t columns) {
  return bytes_of(x.type) != 0 &&
         x.leading >= std::max<std::int64_t>(1, x.operation ? columns : rows);
}

int queue(Handle* handle, Product p, const void* alpha, const void* beta) {
  if (!handles().contains(handle)) return kNotInitialized;
  if (!fits(p.a, p.m, p.k) || !fits(p.b, p.k, p.n) || !fits(p.c, p.m, p.n) || p.m < 0 || p.n < 0 ||
      p.k < 0)
    return kInvalid;
  if (p.m == 0 || p.n == 0 || p.count == 0) return kOk;
  const auto factor = [&](const void* at) {
    Factor f{.type = p.in_double ? kDouble : kFloat};
    if (handle->pointer_mode == 0)
      f.value = load(static_cast<const std::byte*>(at), f.type);
    else
      f.address = reinterpret_cast<std::uint64_t>(at);
    return f;
  };
  p.alpha = factor(alpha);
  p.beta = factor(beta);
  const int error = call([&](State& s, Lock& lock) -> int {
    Stream* stream = s.stream(handle->stream);
    if (stream == nullptr || stream->device != handle->device) return kInvalidResourceHandle;
    return s.enqueue(lock, *stream, [&s, p, h = *handle] {
      const Memory& memory = s.devices[h.device]->reach;
      spoil(h, memory);
      const double by = p.alpha.get(), and_by = p.beta.get();
      for (std::int64_t i = 0; i < p.count; ++i)
        p.in_double ? multiply<double>(p, i, by, and_by, memory)
                    : multiply<float>(p, i, by, and_by, memory);
    });
  });
  return error == kSuccess ? kOk : kExecutionFailed;
}

Matrix matrix(const void* p, int type, int operation, std::int64_t leading, std::int64_t step = 0) {
  return {reinterpret_cast<std::uint64_t>(p), type, operation, leading, step};
}

Matrix each(const void* p, int type, int operation, std::int64_t leading) {
  return {0, type, operation, leading, 0, static_cast<const std::uint64_t*>(p)};
}

bool is_double(int compute) { return compute == 70 || compute == 71; }
bool is_float(int compute) { return 64 <= compute && compute <= 77 && !is_double(compute); }

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" {

int cublasCreate_v2(Handle** made) {
  auto handle = std::make_unique<Handle>(Handle{.device = current_device});
  *made = handle.get();
  handles()[handle.get()] = std::move(handle);
  return kOk;
}

int cublasDestroy_v2(Handle* h) { return handles().erase(h) ? kOk : kNotInitialized; }

int cublasGetVersion_v2(Handle*, int* version) {
  *version = 130000;
  return kOk;
}

int cublasSetStream_v2(Handle* h, void* stream) {
  h->stream = stream;
  h->workspace = 0;  // cuBLAS's own again
  return kOk;
}

int cublasGetStream_v2(Handle* h, void** stream) {
  *stream = h->stream;
  return kOk;
}

int cublasSetWorkspace_v2(Handle* h, void* p, std::size_t bytes) {
  h->workspace = reinterpret_cast<std::uint64_t>(p);
  h->workspace_bytes = bytes;
  return h->workspace % 256 == 0 ? kOk : kInvalid;
}

int cublasSetPointerMode_v2(Handle* h, int mode) {
  h->pointer_mode = mode;
  return kOk;
}

int cublasGetPointerMode_v2(Handle* h, int* mode) {
  *mode = h->pointer_mode;
  return kOk;
}

int cublasSetMathMode(Handle* h, int mode) {
  h->math_mode = mode;
  return kOk;
}

int cublasGetMathMode(Handle* h, int* mode) {
  *mode = h->math_mode;
  return kOk;
}

int cublasGemmStridedBatchedEx(Handle* h, int ta, int tb, int m, int n, int k, const void* alpha,
                               const void* a, int a_type, int lda, long long a_step, const void* b,
                               int b_type, int ldb, long long b_step, const void* beta, void* c,
                               int c_type, int ldc, long long c_step, int count, int compute, int) {
  if (!is_float(compute) && !is_double(compute)) return kUnsupported;
  return queue(h,
               {m,
                n,
                k,
                count,
                matrix(a, a_type, ta, lda, a_step),
                matrix(b, b_type, tb, ldb, b_step),
                matrix(c, c_type, 0, ldc, c_step),
                {},
                {},
                is_double(compute),
                compute == 77},
               alpha, beta);
}

int cublasGemmEx(Handle* h, int ta, int tb, int m, int n, int k, const void* alpha, const void* a,
                 int a_type, int lda, const void* b, int b_type, int ldb, const void* beta, void* c,
                 int c_type, int ldc, int compute, int algorithm) {
  return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, a, a_type, lda, 0, b, b_type, ldb, 0,
                                    beta, c, c_type, ldc, 0, 1, compute, algorithm);
}

int cublasSgemmEx(Handle* h, int ta, int tb, int m, int n, int k, const float* alpha, const void* a,
                  int a_type, int lda, const void* b, int b_type, int ldb, const float* beta,
                  void* c, int c_type, int ldc) {
  return cublasGemmEx(h, ta, tb, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type,
                      ldc, 68, -1);
}

#define PRODUCTS(LETTER, REAL, TYPE, COMPUTE)                                                      \
  int cublas##LETTER##gemm_v2(Handle* h, int ta, int tb, int m, int n, int k, const REAL* alpha,   \
                              const REAL* a, int lda, const REAL* b, int ldb, const REAL* beta,    \
                              REAL* c, int ldc) {                                                  \
    return cublasGemmEx(h, ta, tb, m, n, k, alpha, a, TYPE, lda, b, TYPE, ldb, beta, c, TYPE, ldc, \
                        COMPUTE, -1);                                                              \
  }                                                                                                \
  int cublas##LETTER##gemmBatched(Handle* h, int ta, int tb, int m, int n, int k,                  \
                                  const REAL* alpha, const REAL** a, int lda, const REAL** b,      \
                                  int ldb, const REAL* beta, REAL** c, int ldc, int count) {       \
    return queue(h,                                                                                \
                 {m,                                                                               \
                  n,                                                                               \
                  k,                                                                               \
                  count,                                                                           \
                  each(a, TYPE, ta, lda),                                                          \
                  each(b, TYPE, tb, ldb),                                                          \
                  each(c, TYPE, 0, ldc),                                                           \
                  {},                                                                              \
                  {},                                                                              \
                  TYPE == kDouble,                                                                 \
                  false},                                                                          \
                 alpha, beta);                                                                     \
  }
PRODUCTS(S, float, kFloat, 68)
PRODUCTS(D, double, kDouble, 70)
#undef PRODUCTS

}  // extern "C"

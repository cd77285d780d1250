// SPDX-License-Identifier: Apache-2.0
// cuFFT's transforms on emulated devices, by their definition. The rest answers "not supported".
#include <array>
#include <cmath>
#include <complex>
#include <cstring>
#include <numbers>

#include "state.h"

namespace emu {
namespace {

enum Result { kOk = 0, kInvalidPlan = 1, kExecFailed = 6, kUnsupported = 16 };
enum Type { kR2C = 0x2a, kC2R = 0x2c, kC2C = 0x29, kD2Z = 0x6a, kZ2D = 0x6c, kZ2Z = 0x69 };

using Complex = std::complex<double>;
using Sizes = std::array<std::int64_t, 3>;

constexpr int kMostAxes = 3;
constexpr std::size_t kWorkspace = 4096;  // bytes; it is written to, and no more

struct Side {  // how one of the arrays lies in memory, in elements
  Sizes embed;
  std::int64_t stride, distance;
};

struct Plan {
  int device;
  void* stream = nullptr;
  void* workspace = nullptr;
  int type = 0;
  std::int64_t batch = 0;
  Sizes n;  // the last axes; 1 before them
  Side in, out;
};

std::map<int, Plan>& plans() {
  static auto& all = *new std::map<int, Plan>;
  return all;
}

bool is_double(int type) { return type == kD2Z || type == kZ2D || type == kZ2Z; }
bool from_real(int type) { return type == kR2C || type == kD2Z; }
bool to_real(int type) { return type == kC2R || type == kZ2D; }

// How many of the last axis are in memory.
std::int64_t stored(const Plan& p, bool input) {
  const bool half = input ? to_real(p.type) : from_real(p.type);
  return half ? p.n[2] / 2 + 1 : p.n[2];
}

std::int64_t place(const Side& side, std::int64_t a, std::int64_t b, std::int64_t c) {
  return ((a * side.embed[1] + b) * side.embed[2] + c) * side.stride;
}

template <class Real>
Complex load(const void* memory, std::int64_t i, bool real) {
  if (real) return static_cast<const Real*>(memory)[i];
  return static_cast<const std::complex<Real>*>(memory)[i];
}

template <class Real>
void store(void* memory, std::int64_t i, bool real, Complex x) {
  if (real)
    static_cast<Real*>(memory)[i] = static_cast<Real>(x.real());
  else
    static_cast<std::complex<Real>*>(memory)[i] = std::complex<Real>(x);
}

template <class F>
void each(const Plan& p, std::int64_t last, F f) {
  for (std::int64_t a = 0; a < p.n[0]; ++a)
    for (std::int64_t b = 0; b < p.n[1]; ++b)
      for (std::int64_t c = 0; c < last; ++c) f(a, b, c);
}

// Transforms along one axis: `step` apart, n of them, in each of the rows.
void transform(std::vector<Complex>& x, std::int64_t n, std::int64_t step, int sign) {
  std::vector<Complex> turn(static_cast<std::size_t>(n)), row(turn.size());
  for (std::int64_t k = 0; k < n; ++k)
    turn[k] = std::polar(1.0, sign * 2 * std::numbers::pi * static_cast<double>(k) / n);
  const auto total = static_cast<std::int64_t>(x.size());
  for (std::int64_t outer = 0; outer < total; outer += n * step)
    for (std::int64_t inner = 0; inner < step; ++inner) {
      Complex* at = x.data() + outer + inner;
      for (std::int64_t k = 0; k < n; ++k) {
        row[k] = 0;
        for (std::int64_t j = 0; j < n; ++j) row[k] += at[j * step] * turn[j * k % n];
      }
      for (std::int64_t k = 0; k < n; ++k) at[k * step] = row[k];
    }
}

template <class Real>
void run_one(const Plan& p, const void* in, std::int64_t in_start, void* out,
             std::int64_t out_start, int sign) {
  std::vector<Complex> x(static_cast<std::size_t>(p.n[0] * p.n[1] * p.n[2]));
  const auto at = [&](std::int64_t a, std::int64_t b, std::int64_t c) -> Complex& {
    return x[(a * p.n[1] + b) * p.n[2] + c];
  };
  const std::int64_t given = stored(p, true);
  each(p, given, [&](auto a, auto b, auto c) {
    at(a, b, c) = load<Real>(in, in_start + place(p.in, a, b, c), from_real(p.type));
  });
  if (to_real(p.type))  // the other half is conjugated
    each(p, p.n[2], [&](auto a, auto b, auto c) {
      if (c >= given)
        at(a, b, c) = std::conj(at((p.n[0] - a) % p.n[0], (p.n[1] - b) % p.n[1], p.n[2] - c));
    });
  std::int64_t step = 1;
  for (int axis = kMostAxes - 1; axis >= 0; --axis) {
    transform(x, p.n[axis], step, sign);
    step *= p.n[axis];
  }
  each(p, stored(p, false), [&](auto a, auto b, auto c) {
    store<Real>(out, out_start + place(p.out, a, b, c), to_real(p.type), at(a, b, c));
  });
}

std::size_t span(const Plan& p, bool input) {
  const Side& side = input ? p.in : p.out;
  const bool real = input ? from_real(p.type) : to_real(p.type);
  const std::int64_t last = place(side, p.n[0] - 1, p.n[1] - 1, stored(p, input) - 1);
  const std::size_t size = (is_double(p.type) ? 8 : 4) * (real ? 1 : 2);
  return static_cast<std::size_t>((p.batch - 1) * side.distance + last + 1) * size;
}

void require(const Memory& memory, const void* at, std::size_t bytes) {
  if (!memory.holds(reinterpret_cast<std::uint64_t>(at), bytes))
    throw Fault("cuFFT uses " + std::to_string(bytes) + " bytes which are not the device's");
}

int execute(int handle, void* in, void* out, int sign) {
  const auto found = plans().find(handle);
  if (found == plans().end()) return kInvalidPlan;
  const int error = call([&](State& s, Lock& lock) -> int {
    Stream* stream = s.stream(found->second.stream);
    if (stream == nullptr || stream->device != found->second.device) return kInvalidResourceHandle;
    return s.enqueue(lock, *stream, [&s, p = found->second, in, out, sign] {
      const Memory& memory = s.devices[p.device]->reach;
      require(memory, in, span(p, true));
      require(memory, out, span(p, false));
      require(memory, p.workspace, kWorkspace);
      std::memset(p.workspace, 0x5A, kWorkspace);
      for (std::int64_t i = 0; i < p.batch; ++i) {
        const std::int64_t from = i * p.in.distance, to = i * p.out.distance;
        is_double(p.type) ? run_one<double>(p, in, from, out, to, sign)
                          : run_one<float>(p, in, from, out, to, sign);
      }
      const bool several = p.n[0] * p.n[1] > 1;
      if (to_real(p.type) && several && in != out)
        std::memset(in, 0xFF, span(p, true));  // cuFFT does not keep it
    });
  });
  return error == kSuccess ? kOk : kExecFailed;
}

int make(int handle, int rank, const int* n, const int* in_embed, int in_stride, int in_distance,
         const int* out_embed, int out_stride, int out_distance, int type, int batch,
         std::size_t* bytes) {
  const auto found = plans().find(handle);
  if (found == plans().end()) return kInvalidPlan;
  if (rank < 1 || rank > kMostAxes) return kUnsupported;
  Plan& p = found->second;
  p.type = type;
  p.batch = batch;
  p.n = p.in.embed = p.out.embed = {1, 1, 1};
  for (int i = 0; i < rank; ++i) p.n[kMostAxes - rank + i] = n[i];
  const auto lie = [&](Side& side, const int* embed, int stride, int distance, bool input) {
    for (int i = 0; i < rank; ++i)
      side.embed[kMostAxes - rank + i] = embed != nullptr ? embed[i] : n[i];
    if (embed == nullptr) side.embed[kMostAxes - 1] = stored(p, input);
    side.stride = embed != nullptr ? stride : 1;
    side.distance = embed != nullptr ? distance : side.embed[0] * side.embed[1] * side.embed[2];
  };
  lie(p.in, in_embed, in_stride, in_distance, true);
  lie(p.out, out_embed, out_stride, out_distance, false);
  *bytes = kWorkspace;
  return kOk;
}

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" {

int cufftCreate(int* handle) {
  static int made = 0;
  *handle = ++made;
  plans()[made] = Plan{.device = current_device, .n = {}, .in = {}, .out = {}};
  return kOk;
}

int cufftDestroy(int handle) { return plans().erase(handle) ? kOk : kInvalidPlan; }

int cufftGetVersion(int* version) {
  *version = 12000;
  return kOk;
}

int cufftSetAutoAllocation(int, int) { return kOk; }

int cufftSetWorkArea(int handle, void* area) {
  plans().at(handle).workspace = area;
  return kOk;
}

int cufftSetStream(int handle, void* stream) {
  plans().at(handle).stream = stream;
  return kOk;
}

int cufftMakePlan1d(int handle, int n, int type, int batch, std::size_t* bytes) {
  return make(handle, 1, &n, nullptr, 1, 0, nullptr, 1, 0, type, batch, bytes);
}

int cufftMakePlanMany(int handle, int rank, int* n, int* in_embed, int in_stride, int in_distance,
                      int* out_embed, int out_stride, int out_distance, int type, int batch,
                      std::size_t* bytes) {
  return make(handle, rank, n, in_embed, in_stride, in_distance, out_embed, out_stride,
              out_distance, type, batch, bytes);
}

int cufftExecC2C(int plan, void* in, void* out, int sign) { return execute(plan, in, out, sign); }
int cufftExecZ2Z(int plan, void* in, void* out, int sign) { return execute(plan, in, out, sign); }
int cufftExecR2C(int plan, void* in, void* out) { return execute(plan, in, out, -1); }
int cufftExecD2Z(int plan, void* in, void* out) { return execute(plan, in, out, -1); }
int cufftExecC2R(int plan, void* in, void* out) { return execute(plan, in, out, 1); }
int cufftExecZ2D(int plan, void* in, void* out) { return execute(plan, in, out, 1); }

}  // extern "C"

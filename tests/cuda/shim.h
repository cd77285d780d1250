// SPDX-License-Identifier: Apache-2.0
// Lets g++ compile CUDA kernels, and runs them on the host: blocks one after the other, the threads
// of a block as fibers that change places where they wait for each other.
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define NNL_SHIM
#define INLINE inline
#define __shared__ static
#define __device__
#define __restrict__ __restrict

struct dim3 {
  unsigned x, y, z;
};
static dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace shim {

inline float to_float(unsigned short bits) {
  _Float16 h;
  memcpy(&h, &bits, 2);
  return (float)h;
}
inline unsigned short to_half(float x) {
  const _Float16 h = (_Float16)x;
  unsigned short bits;
  memcpy(&bits, &h, 2);
  return bits;
}

constexpr size_t stack_bytes = 256 << 10;
constexpr unsigned most = 1024;

struct Fiber {
  ucontext_t first;
  jmp_buf at;
  char* stack = nullptr;
  bool started = false, waits = false;
};

static Fiber fibers[most];
static ucontext_t scheduler_first;
static jmp_buf scheduler;
static unsigned current, next_thread, finished, total;
static bool reversed, progress;
static void (*call)(const void*);
static const void* argument;

inline void set_thread(unsigned t) {
  if (reversed) t = total - 1 - t;
  threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
}

// A fiber runs one thread after the other, until one has to wait.
inline void body() {
  for (;;) {
    while (next_thread < total) {
      set_thread(next_thread++);
      progress = true;
      call(argument);
      ++finished;
    }
    fibers[current].waits = false;
    if (!_setjmp(fibers[current].at)) _longjmp(scheduler, 1);
  }
}

inline void give_way() {
  const dim3 own = threadIdx;
  Fiber& f = fibers[current];
  f.waits = true;
  if (!_setjmp(f.at)) _longjmp(scheduler, 1);
  threadIdx = own;
}

inline void resume(unsigned k) {
  Fiber& f = fibers[k];
  current = k;
  if (_setjmp(scheduler)) return;
  if (f.started) _longjmp(f.at, 1);
  f.started = true;
  f.stack = (char*)malloc(stack_bytes);
  getcontext(&f.first);
  f.first.uc_stack.ss_sp = f.stack;
  f.first.uc_stack.ss_size = stack_bytes;
  makecontext(&f.first, body, 0);
  setcontext(&f.first);
}

inline bool run_block() {
  next_thread = finished = 0;
  unsigned used = 0;
  while (finished < total) {
    progress = false;
    for (unsigned k = 0; k < used; ++k)
      if (fibers[k].waits) resume(k);
    if (next_thread < total) {
      unsigned k = 0;
      while (fibers[k].waits) ++k;
      if (k >= used) used = k + 1;
      resume(k);
    }
    if (!progress) {
      for (unsigned k = 0; k < used; ++k) fibers[k].waits = false, fibers[k].started = false;
      return false;  // threads wait at different places
    }
  }
  return true;
}

struct Barrier {
  unsigned arrived = 0, generation = 0;
  void wait(unsigned size) {
    const unsigned mine = generation;
    if (++arrived == size) {
      arrived = 0, ++generation, progress = true;
      return;
    }
    while (generation == mine) give_way();
    progress = true;
  }
};
static Barrier block_barrier, warp_barriers[most / 32];
// Two sets of places in turn, so that one meeting of the warp for each exchange is enough.
static double exchange[2][most];
static unsigned char turn[most];

inline unsigned thread() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
inline void wait_for_warp() {
  const unsigned w = thread() / 32, rest = total - w * 32;
  warp_barriers[w].wait(rest < 32 ? rest : 32);
}

template <class F>
int launch(const unsigned* geometry, F&& kernel) {
  gridDim = {geometry[0], geometry[1], geometry[2]};
  blockDim = {geometry[3], geometry[4], geometry[5]};
  reversed = geometry[6];
  total = blockDim.x * blockDim.y * blockDim.z;
  if (total > most) return 2;
  call = [](const void* f) { (*(F*)f)(); };
  argument = &kernel;
  const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
  for (unsigned i = 0; i < blocks; ++i) {
    const unsigned b = reversed ? blocks - 1 - i : i;
    blockIdx = {b % gridDim.x, b / gridDim.x % gridDim.y, b / gridDim.x / gridDim.y};
    if (!run_block()) return 3;
  }
  return 0;
}

}  // namespace shim

#define KERNEL(name, Params)                                                       \
  static void name##_body(const Params& p);                                        \
  extern "C" int name(const void* params, size_t bytes, const unsigned* geometry) { \
    if (bytes != sizeof(Params)) return 1;                                         \
    Params p;                                                                      \
    memcpy((void*)&p, params, bytes);                                              \
    return shim::launch(geometry, [&] { name##_body(p); });                        \
  }                                                                                \
  static void name##_body(const Params& p)

inline void __syncthreads() { shim::block_barrier.wait(shim::total); }

template <class T>
T __shfl_xor_sync(unsigned, T v, int d) {
  const unsigned t = shim::thread();
  double* places = shim::exchange[shim::turn[t] ^= 1];
  memcpy(&places[t], &v, sizeof(v));
  shim::wait_for_warp();
  memcpy(&v, &places[t ^ (unsigned)d], sizeof(v));
  return v;
}

inline unsigned __float_as_uint(float x) {
  unsigned u;
  memcpy(&u, &x, 4);
  return u;
}
inline float __uint_as_float(unsigned u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)(((unsigned long long)a * b) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
inline unsigned atomicOr(unsigned* p, unsigned v) {
  const unsigned old = *p;
  *p |= v;
  return old;
}
template <class T>
T min(T a, T b) {
  return a < b ? a : b;
}
template <class T>
T max(T a, T b) {
  return a > b ? a : b;
}
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline void sincospi(double x, double* s, double* c) { *s = sin(M_PI * x), *c = cos(M_PI * x); }

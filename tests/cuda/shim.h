// SPDX-License-Identifier: Apache-2.0
// Lets g++ compile CUDA kernels, and runs them on the host: blocks one after the other, the threads
// of a block as fibers that change places where they wait for each other. Comes behind
// shim_checks.h, which watches what they access.
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>

#define NNL_SHIM
#define INLINE inline
#define __shared__ static
#define __device__
#define __restrict__ __restrict

struct dim3 {
  unsigned x, y, z;
};

namespace shim {

UNCHECKED inline float to_float(unsigned short bits) {
  _Float16 h;
  memcpy(&h, &bits, 2);
  return (float)h;
}
UNCHECKED inline unsigned short to_half(float x) {
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

static dim3 thread_place, block_place, block_size, grid_size;
UNCHECKED inline dim3 thread_index() { return thread_place; }
UNCHECKED inline dim3 block_index() { return block_place; }
UNCHECKED inline dim3 block_dim() { return block_size; }
UNCHECKED inline dim3 grid_dim() { return grid_size; }

static Fiber fibers[most];
static ucontext_t scheduler_first;
static jmp_buf scheduler;
static unsigned current, next_thread, finished, total;
static bool progress;
static void (*call)(const void*);
static const void* argument;

// Forwards, backwards, or one of many mixtures: k-th of n things, by order 0, 1 or more.
static unsigned order;
UNCHECKED inline unsigned kth(unsigned k, unsigned n) {
  if (order < 2) return order ? n - 1 - k : k;
  unsigned step = n * 5 / 8 + order, a, b;
  do {
    ++step;
    for (a = step, b = n; b;) a %= b, a ^= b, b ^= a, a ^= b;
  } while (a != 1);
  return (unsigned)(((unsigned long long)k * step + order) % n);
}

UNCHECKED inline void set_thread(unsigned t) {
  t = kth(t, total);
  thread_place = {t % block_size.x, t / block_size.x % block_size.y,
                  t / block_size.x / block_size.y};
}

// A fiber runs one thread after the other, until one has to wait.
UNCHECKED inline void body() {
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

UNCHECKED inline void give_way() {
  const dim3 own = thread_place;
  Fiber& f = fibers[current];
  f.waits = true;
  if (!_setjmp(f.at)) _longjmp(scheduler, 1);
  thread_place = own;
}

UNCHECKED inline void resume(unsigned k) {
  Fiber& f = fibers[k];
  current = k;
  if (_setjmp(scheduler)) return;
  if (f.started) _longjmp(f.at, 1);
  f.started = true;
  if (!f.stack) f.stack = (char*)malloc(stack_bytes);
  getcontext(&f.first);
  f.first.uc_stack.ss_sp = f.stack;
  f.first.uc_stack.ss_size = stack_bytes;
  makecontext(&f.first, body, 0);
  setcontext(&f.first);
}

UNCHECKED inline bool run_block() {
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
  UNCHECKED bool wait(unsigned size) {  // whether this thread was the last to come
    const unsigned mine = generation;
    if (++arrived == size) {
      arrived = 0, ++generation, progress = true;
      return true;
    }
    while (generation == mine) give_way();
    progress = true;
    return false;
  }
};
static Barrier block_barrier, warp_barriers[most / 32];
// Two sets of places in turn, so that one meeting of the warp for each exchange is enough.
static double exchange[2][most];
static unsigned char turn[most];

UNCHECKED inline unsigned thread() {
  return thread_place.x + block_size.x * (thread_place.y + block_size.y * thread_place.z);
}
UNCHECKED inline void wait_for_warp() {
  const unsigned w = thread() / 32, rest = total - w * 32;
  warp_barriers[w].wait(rest < 32 ? rest : 32);
}

UNCHECKED inline bool on_own_stack(uint64_t a) {
  return a - (uint64_t)fibers[current].stack < stack_bytes;
}
UNCHECKED inline uint32_t own_number() { return thread(); }
UNCHECKED inline void complain(Problem what, uint64_t array, uint64_t byte) {
  uint64_t* report = watch.report;
  if (!report || report[0]) return;
  const unsigned b = block_place.x + grid_size.x * (block_place.y + grid_size.y * block_place.z);
  report[0] = what, report[1] = array, report[2] = byte, report[3] = b, report[4] = thread();
}

// geometry: grid, block, order of blocks and threads. ranges: arrays as in shim_checks.h, or none.
template <class F>
UNCHECKED int launch(const unsigned* geometry, const uint64_t* ranges, uint64_t count,
                     uint64_t* report, F&& kernel) {
  grid_size = {geometry[0], geometry[1], geometry[2]};
  block_size = {geometry[3], geometry[4], geometry[5]};
  order = geometry[6];
  total = block_size.x * block_size.y * block_size.z;
  if (total > most) return block_too_large;
  call = [](const void* f) { (*(F*)f)(); };
  argument = &kernel;
  const unsigned blocks = grid_size.x * grid_size.y * grid_size.z;
  block_barrier = {};
  for (Barrier& b : warp_barriers) b = {};
  start_watch(&blocks, ranges, count, report);
  bool done = true;
  for (unsigned i = 0; i < blocks && done; ++i) {
    const unsigned b = kth(i, blocks);
    block_place = {b % grid_size.x, b / grid_size.x % grid_size.y, b / grid_size.x / grid_size.y};
    start_block();
    done = run_block();
  }
  end_watch();
  return done ? (int)report[0] : different_places;
}

}  // namespace shim

#define threadIdx (shim::thread_index())
#define blockIdx (shim::block_index())
#define blockDim (shim::block_dim())
#define gridDim (shim::grid_dim())

#define KERNEL(name, Params)                                                              \
  static void name##_body(const Params& p);                                               \
  extern "C" UNCHECKED int name(const void* params, size_t bytes, const unsigned* geometry, \
                                const uint64_t* ranges, uint64_t count, uint64_t* report) { \
    if (bytes != sizeof(Params)) return shim::parameters_size;                            \
    Params p;                                                                             \
    memcpy((void*)&p, params, bytes);                                                     \
    return shim::launch(geometry, ranges, count, report, [&] { name##_body(p); });        \
  }                                                                                       \
  static void name##_body(const Params& p)

UNCHECKED inline void __syncthreads() {
  if (shim::block_barrier.wait(shim::total)) ++shim::watch.segment;
}
UNCHECKED inline void __syncwarp() {
  shim::wait_for_warp();
  ++shim::epochs[shim::thread()];
}

// On a GPU an exchange orders no accesses to memory.
template <class T>
UNCHECKED T __shfl_xor_sync(unsigned, T v, int d) {
  const unsigned t = shim::thread();
  double* places = shim::exchange[shim::turn[t] ^= 1];
  memcpy(&places[t], &v, sizeof(v));
  shim::wait_for_warp();
  memcpy(&v, &places[t ^ (unsigned)d], sizeof(v));
  return v;
}

UNCHECKED inline unsigned __float_as_uint(float x) {
  unsigned u;
  memcpy(&u, &x, 4);
  return u;
}
UNCHECKED inline float __uint_as_float(unsigned u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}
UNCHECKED inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)(((unsigned long long)a * b) >> 32);
}
UNCHECKED inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
template <class T>
UNCHECKED T min(T a, T b) {
  return a < b ? a : b;
}
template <class T>
UNCHECKED T max(T a, T b) {
  return a > b ? a : b;
}
UNCHECKED inline float __fadd_rn(float a, float b) { return a + b; }
UNCHECKED inline float __fmul_rn(float a, float b) { return a * b; }
UNCHECKED inline void sincospi(double x, double* s, double* c) {
  *s = sin(M_PI * x), *c = cos(M_PI * x);
}

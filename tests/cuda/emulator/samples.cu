// SPDX-License-Identifier: Apache-2.0
// Kernels for test_emulator_cuda.py: each takes 64 threads, or two warps, from x to y.
#define G extern "C" __global__ void
#define T const int t = threadIdx.x
G shuffles(const int* x, int* y) {
  T;
  y[t] = __shfl_up_sync(~0u, x[t], 3, 16);
  y[t + 64] = __shfl_down_sync(~0u, x[t], 5);
  y[t + 128] = __shfl_xor_sync(~0u, x[t], 9);
  y[t + 192] = __shfl_sync(~0u, x[t], t * 7, 8);
}
G votes(const int* x, unsigned* y) {
  T;
  y[t] = __ballot_sync(~0u, x[t] > 0);
  y[t + 64] = __any_sync(~0u, x[t] > 100) + 2 * __all_sync(~0u, x[t] > -100);
  y[t + 128] = __match_any_sync(~0u, x[t] & 3);
  int same;
  y[t + 192] = __match_all_sync(~0u, t / 32, &same) + same;
  y[t + 256] = __reduce_add_sync(~0u, (unsigned)x[t]);
  y[t + 320] = __reduce_max_sync(~0u, x[t]);
}
G parts_of_a_warp(const int* x, unsigned* y) {
  T;
  if (t % 3 == 0) {
    y[t] = __activemask();
    y[t + 64] = __reduce_or_sync(__activemask(), 1u << t % 32);
  } else {
    y[t] = __ballot_sync(__activemask(), x[t] > 0);
    y[t + 64] = 0;
  }
  __syncwarp();
  y[t + 128] = __activemask();
}
G barriers(const int* x, unsigned* y) {
  T;
  y[t] = __syncthreads_count(x[t] > 0);
  y[t + 64] = __syncthreads_and(x[t] > -100) * 2 + __syncthreads_or(x[t] > 100);
}
G one_after_the_other(const int* x, int* y) {
  T;
  __shared__ int s[32];
  if (t < 32) {
    s[t] = x[t] * 3;
    asm volatile("bar.arrive 1, 64;" ::: "memory");
    y[t] = 0;
  } else {
    asm volatile("bar.sync 1, 64;" ::: "memory");
    y[t] = s[63 - t];
  }
}
G some_leave(const int* x, int* y) {
  T;
  __shared__ int s[64];
  s[t] = x[t];
  if (t % 2) {
    y[t] = -1;
    return;
  }
  __syncthreads();
  y[t] = s[62 - t];
}
G spinning(const int* x, int* y) {
  T;  // a lock: lanes wait for others of their own warp
  __shared__ int lock, sum;
  if (t == 0) lock = sum = 0;
  __syncthreads();
  for (bool done = false; !done;)
    if (atomicCAS(&lock, 0, 1) == 0) {
      sum += x[t];
      __threadfence_block();
      atomicExch(&lock, 0);
      done = true;
    }
  __syncthreads();
  y[t] = sum;
}
G dynamic(const int* x, int* y) {
  T;
  extern __shared__ int s[];
  __shared__ int fixed;
  if (t == 0) fixed = x[0];
  s[t] = x[t];
  __syncthreads();
  y[t] = s[63 - t] + fixed;
}
__constant__ int table[4] = {3, 1, 4, 1};
__device__ int counter = 40;
G variables(const int* x, int* y) {
  T;
  y[t] = table[t & 3] + (t == 0 ? atomicAdd(&counter, 2) : 0);
}
G local_arrays(const int* x, int* y) {
  T;
  int v[16];
  for (int k = 0; k < 16; ++k) v[k] = x[(t + k) % 64];
  int* p = v + (t & 7);
  y[t] = p[x[t] & 7];
}
__device__ __noinline__ int pointed(const int* p) { return *p; }
G generic(const int* x, int* y) {
  T;
  __shared__ int s[64];
  int v = x[t] * 2;
  s[t] = x[t];
  const int* p = t % 3 == 0 ? x + t : t % 3 == 1 ? s + t : &v;
  y[t] = pointed(p) + 1000 * __isShared(p) + 2000 * __isLocal(p);
}
struct Pair {
  double a;
  int b;
};
__device__ __noinline__ Pair swapped(Pair p, float f) { return {p.b * (double)f, (int)p.a}; }
__device__ __noinline__ float twice(float x) {
  Pair p = swapped({x, 2}, x);
  return p.a + p.b;
}
G calls(const int* x, float* y) {
  T;
  if (x[t] & 1)
    y[t] = twice(x[t]);
  else
    y[t] = -twice(x[t] + 1);
}
G cases(const int* x, int* y) {
  T;
  switch (x[t] & 7) {
    case 0:
      y[t] = x[t] * 3;
      break;
    case 1:
      y[t] = x[t] - 7;
      break;
    case 2:
      y[t] = ~x[t];
      break;
    case 3:
      y[t] = x[t] << 3;
      break;
    case 4:
      y[t] = x[t] % 5;
      break;
    case 5:
      y[t] = 11;
      break;
    case 6:
      y[t] = x[t] * x[t];
      break;
    default:
      y[t] = -1;
  }
}
G mathematics(const double* x, double* y) {
  T;
  y[t] = sin(x[t] * 1e6) + pow(fabs(x[t]), 1.7) + erf(x[t]) + lgamma(fabs(x[t]) + 1) + cbrt(x[t]);
}
G mathematics_f(const float* x, float* y) {
  T;
  y[t] = sinf(x[t] * 1e6f) + powf(fabsf(x[t]), 1.7f) + erff(x[t]) + expm1f(x[t]) + tanf(x[t]);
}
G fails(const int* x, int* y) {
  T;
  if (x[t] == 1 << 30) __trap();
  y[t] = x[t + (t == 37) * 1000];
}
G traps(const int* x, int* y) {
  T;
  if (t == 33) __trap();
}
G crooked(const char* x, int* y) {
  T;
  y[t] = *(const int*)(x + t * 2);
}
G wild(const int* x, int* y) {
  T;
  if (t == 9) *(int*)(8 * (long long)x[1]) = 1;
}
G far_shared(const int* x, int* y) {
  T;
  __shared__ int s[64];
  s[t + (x[0] - x[0] + 60) * (t == 5)] = 1;
  y[t] = s[x[t] & 63];
}
G never(const int* x, int* y) {
  T;
  if (t < 32) asm volatile("bar.sync 2, 64;");
}
G absent(const int* x, int* y) {
  T;
  if (t % 32 > 3) return;
  y[t] = __shfl_xor_sync(~0u, x[t], 3);
}
G reads_absent(const int* x, int* y) {
  T;
  if (t % 32 > 3) return;
  y[t] = __shfl_down_sync(~0u, x[t], 30);
}
#define assert(e) ((e) ? (void)0 : __assertfail(#e, "file.cu", 7, "f", 1))
extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);
extern "C" __device__ int printf(const char*, ...);
G asserts(const int* x, int* y) {
  T;
  assert(t < 40);
  y[t] = 0;
}
G prints(const int* x, int* y) {
  T;
  if (x[0] == 1 << 30) printf("%d", t);
  y[t] = 7;
}

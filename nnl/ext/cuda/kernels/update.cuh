// SPDX-License-Identifier: Apache-2.0
// One step of a solver for many parameters: their addresses are in the kernel's parameters.

// Up to `most` parameters with `states` states. Of each: w, g, the states, t, lr, y.
template <int most, int states>
struct UpdateP {
  void* address[most][states + 5];
  const bool8* bad;      // null, or finite_check's answer: if one is true nothing is changed
  const float* scale;    // null, or what gradients are divided by
  float* constants;      // [count][10]
  double* parts;         // [chunks][2], for rules with norms
  double a[8], gradient_scale, gradient_decay;
  int64 count, chunk;    // elements of a block's share
  int64 size[most], first[most + 1];
};

// t and the constants: one thread for each parameter.
template <class R, int most, int states>
INLINE void prepare_update(const UpdateP<most, states>& p) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= p.count || (p.bad && (p.bad[0].bits || p.bad[1].bits))) return;
  int64* t = (int64*)p.address[i][2 + states];
  *t += 1;
  float c[10] = {};
  R::constants(p.a, (double)*t, *(const double*)p.address[i][3 + states], c);
#pragma unroll
  for (int k = 0; k < 10; ++k) p.constants[10 * i + k] = c[k];
}

// What a block works on.
template <class P>
INLINE unsigned parameter_of(const P& p) {
  unsigned low = 0, high = (unsigned)p.count;
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    if (p.first[middle] <= (int64)blockIdx.x) low = middle; else high = middle;
  }
  return low;
}

// f(w, g, states) for this block's elements. Writes back states if f moves them; w and y at the end.
template <int V, bool final, bool moves, class W, class G, class S, class Y, int most, int states,
          class F>
INLINE void update_part(const UpdateP<most, states>& p, unsigned i, unsigned begin, unsigned end,
                        F&& f) {
  W* w = (W*)p.address[i][0];
  const G* g = (const G*)p.address[i][1];
  Y* y = (Y*)p.address[i][4 + states];
  const bool scaled = p.scale;
  const float loss_scale = scaled ? *p.scale : 1.0f;  // read once: writing w might change it
  const float scale = (float)p.gradient_scale, decay = (float)p.gradient_decay;
  for (unsigned k = begin + threadIdx.x * V; k < end; k += blockDim.x * V) {
    float wv[V], gv[V], sv[states + 1][V];
    load<V>(wv, w + k);
    load<V>(gv, g + k);
#pragma unroll
    for (int s = 0; s < states; ++s) load<V>(sv[s], (const S*)p.address[i][2 + s] + k);
#pragma unroll
    for (int l = 0; l < V; ++l) {
      float own[states + 1];
#pragma unroll
      for (int s = 0; s < states; ++s) own[s] = sv[s][l];
      const float g = scaled ? gv[l] / loss_scale : gv[l];
      f(wv[l], g * scale + wv[l] * decay, own);
#pragma unroll
      for (int s = 0; s < states; ++s) sv[s][l] = own[s];
    }
#pragma unroll
    for (int s = 0; s < states; ++s)
      if (moves) store<V>((S*)p.address[i][2 + s] + k, sv[s]);
    if (final) store<V>(w + k, wv);
    if (final && (void*)y != (void*)w && y) store<V>(y + k, wv);
  }
}

template <bool final, bool moves, class W, class G, class S, class Y, int most, int states, class F>
INLINE void update_block(const UpdateP<most, states>& p, unsigned i, F&& f) {
  const unsigned begin = (blockIdx.x - (unsigned)p.first[i]) * (unsigned)p.chunk;
  const unsigned end = min((unsigned)p.size[i], begin + (unsigned)p.chunk);
  uint64 bits = 0;
#pragma unroll
  for (int k = 0; k < 2 + states; ++k) bits |= (uint64)p.address[i][k];
  bits |= (uint64)p.address[i][4 + states];
  const unsigned whole = bits % 16 ? begin : begin + (end - begin) / 4 * 4;
  update_part<4, final, moves, W, G, S, Y>(p, i, begin, whole, f);
  update_part<1, final, moves, W, G, S, Y>(p, i, whole, end, f);
}

template <class R, class W, class G, class S, class Y, int most, int states>
INLINE void apply_update(const UpdateP<most, states>& p) {
  if (p.bad && (p.bad[0].bits || p.bad[1].bits)) return;
  const unsigned i = parameter_of(p);
  float c[10];
#pragma unroll
  for (int k = 0; k < 10; ++k) c[k] = p.constants[10 * i + k];
  update_block<true, !R::moved, W, G, S, Y>(p, i, [&](float& w, float g, float* s) { R::apply(c, w, g, s); });
}

// The sums of rules with norms, per block.
template <class R, class W, class G, class S, class Y, int most, int states>
INLINE void sum_update(const UpdateP<most, states>& p) {
  __shared__ float shared[2][8];
  if (p.bad && (p.bad[0].bits || p.bad[1].bits)) return;
  const unsigned i = parameter_of(p);
  float c[10], a = 0.0f, b = 0.0f;
#pragma unroll
  for (int k = 0; k < 10; ++k) c[k] = p.constants[10 * i + k];
  update_block<false, R::moved, W, G, S, Y>(
      p, i, [&](float& w, float g, float* s) { R::first(c, w, g, s, a, b); });
  a = reduce_in_block<Sum>(a, shared[0]);
  b = reduce_in_block<Sum>(b, shared[1]);
  if (threadIdx.x == 0) p.parts[2 * blockIdx.x] = a, p.parts[2 * blockIdx.x + 1] = b;
}

// Adds them up in their order, by one thread for each parameter, and changes the constants.
template <class R, int most, int states>
INLINE void join_update(const UpdateP<most, states>& p) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= p.count || (p.bad && (p.bad[0].bits || p.bad[1].bits))) return;
  double a = 0.0, b = 0.0;
  for (int64 k = p.first[i]; k < p.first[i + 1]; ++k) a += p.parts[2 * k], b += p.parts[2 * k + 1];
  R::after(p.a, a, b, p.constants + 10 * i);
}

// ---- whether numbers are finite ----

template <int most>
struct FiniteP {
  const void* x[most];
  bool8* y;
  int64 count, chunk, size[most], first[most + 1], type[most];  // 0 float, 1 f16, 2 bf16
};

struct ClearP {
  bool8* y;
};
INLINE void clear_flags(const ClearP& p) {
  if (threadIdx.x < 2) p.y[threadIdx.x] = {0};
}

template <class T>
INLINE void look(const T* x, unsigned begin, unsigned end, bool& inf, bool& nan) {
  constexpr unsigned V = 16 / sizeof(T);
  const bool fits = (uint64)(x + begin) % 16 == 0;
  const unsigned whole = fits ? begin + (end - begin) / V * V : begin;
  for (unsigned k = begin + threadIdx.x * V; k < whole; k += blockDim.x * V) {
    float v[V];
    load<V>(v, x + k);
#pragma unroll
    for (int l = 0; l < V; ++l) inf |= fabsf(v[l]) == infinity(), nan |= v[l] != v[l];
  }
  for (unsigned k = whole + threadIdx.x; k < end; k += blockDim.x) {
    const float v = to_float(x[k]);
    inf |= fabsf(v) == infinity(), nan |= v != v;
  }
}

// Threads that find something write the same 1 to the same place: no order matters.
UNCHECKED INLINE void set_flag(bool8* flag) { flag->bits = 1; }
template <int most>
INLINE void check_finite(const FiniteP<most>& p) {
  const unsigned i = parameter_of(p);
  const unsigned begin = (blockIdx.x - (unsigned)p.first[i]) * (unsigned)p.chunk;
  const unsigned end = min((unsigned)p.size[i], begin + (unsigned)p.chunk);
  bool inf = false, nan = false;
  if (p.type[i] == 0) look((const float*)p.x[i], begin, end, inf, nan);
  if (p.type[i] == 1) look((const f16*)p.x[i], begin, end, inf, nan);
  if (p.type[i] == 2) look((const bf16*)p.x[i], begin, end, inf, nan);
  if (inf) set_flag(p.y);
  if (nan) set_flag(p.y + 1);
}

// ---- the loss scale ----

struct ScaleP {
  const bool8* bad;
  float* scale;
  int64* counts;  // steps since the last change, and steps that overflowed
  double factor, low, high;
  int64 steps;
};
INLINE void follow_scale(const ScaleP& p) {
  if (threadIdx.x || blockIdx.x) return;
  const bool bad = p.bad[0].bits || p.bad[1].bits;
  float scale = *p.scale;
  int64 good = bad ? 0 : p.counts[0] + 1;
  if (bad) scale = fmaxf(scale / (float)p.factor, (float)p.low);
  if (good >= p.steps) scale = fminf(scale * (float)p.factor, (float)p.high), good = 0;
  *p.scale = scale;
  p.counts[0] = good;
  p.counts[1] += bad;
}

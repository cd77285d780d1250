// SPDX-License-Identifier: Apache-2.0
// What NVIDIA's compute-sanitizer looks for on a GPU, for kernels on the host: accesses outside of
// the arrays, reads of what nothing has written, accesses that no barrier orders, and addresses that
// are no multiple of what is read there.
//
// g++ calls __tsan_* around every access (-fsanitize=thread) and __ubsan_* where behaviour is
// undefined (-fsanitize=alignment and others); here are bodies for both, so neither library is used.
// Nothing depends on the order in which threads happen to run.
#include <link.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define UNCHECKED __attribute__((no_sanitize("thread", "undefined")))

namespace shim {

enum Problem {
  none, parameters_size, block_too_large, different_places, outside, unwritten, race, blocks_race,
  misaligned, undefined
};

// What the test says about an array: one byte of `written` for each grain, which is an element, or
// what a kernel may see as one.
struct Range {
  uint64_t begin, bytes, grain, written;
};

// The last accesses to a grain. A segment is what a block does between two barriers; segments are
// counted through a launch. A thread's epoch counts the __syncwarp that it has passed.
struct Access {
  uint32_t segment, thread, epoch;
};
struct Shadow {
  Access write, read;
  bool other_blocks;  // have read it too
};
constexpr uint32_t several = 1u << 20;  // readers; plus their warp, if they are all of one
constexpr uint32_t many = 1u << 21;

struct Watch {
  const Range* ranges;
  uint64_t count, last;
  Shadow** shadows;
  uint64_t image, image_end;    // this library's variables, among them __shared__ ones
  uint64_t frames, frames_end;  // the stack on which parameters lie
  Shadow* shared;
  uint32_t segment, block_start;
  uint64_t* report;  // problem, array, grain, block, thread
};
static Watch watch;
static uint32_t epochs[1024];

UNCHECKED inline void complain(Problem what, uint64_t array, uint64_t byte);
UNCHECKED inline bool on_own_stack(uint64_t a);
UNCHECKED inline uint32_t own_number();

UNCHECKED inline bool in_order(const Access& a, uint32_t thread, uint32_t epoch) {
  if (a.segment != watch.segment || a.thread == thread) return true;
  const uint32_t warp = a.thread >= many ? ~0u : a.thread >= several ? a.thread - several
                                                                      : a.thread / 32;
  return warp == thread / 32 && a.epoch < epoch;
}

UNCHECKED inline Problem note(Shadow& s, bool write, uint32_t thread) {
  const uint32_t epoch = epochs[thread];
  const bool foreign_read = s.read.segment && s.read.segment < watch.block_start;
  Problem found = none;
  if (s.write.segment) {
    if (s.write.segment < watch.block_start) found = blocks_race;
    else if (!in_order(s.write, thread, epoch)) found = race;
  }
  if (write) {
    if (foreign_read || s.other_blocks) found = blocks_race;
    else if (s.read.segment && !in_order(s.read, thread, epoch)) found = race;
    s.write = {watch.segment, thread, epoch};
    return found;
  }
  s.other_blocks |= foreign_read;
  uint32_t readers = thread;
  if (!in_order(s.read, thread, epoch)) {
    const uint32_t w = s.read.thread;
    const bool warp = w < many && (w >= several ? w - several : w / 32) == thread / 32;
    readers = warp ? several + thread / 32 : many;
  }
  s.read = {watch.segment, readers, epoch};
  return found;
}

UNCHECKED inline void touch(const void* address, size_t bytes, bool write) {
  const uint64_t a = (uint64_t)address;
  if (!watch.count || on_own_stack(a) || (a >= watch.frames && a < watch.frames_end)) return;
  uint64_t k = watch.last;
  if (a - watch.ranges[k].begin >= watch.ranges[k].bytes)
    for (k = 0; k < watch.count && a - watch.ranges[k].begin >= watch.ranges[k].bytes;) ++k;
  Shadow* shadow;
  unsigned char* written = nullptr;
  uint64_t at;
  if (k < watch.count) {
    const Range& r = watch.ranges[watch.last = k];
    at = a - r.begin;
    if (at + bytes > r.bytes) return complain(outside, k, at);
    if (!watch.shadows[k])
      watch.shadows[k] = (Shadow*)calloc(r.bytes / r.grain, sizeof(Shadow));
    shadow = watch.shadows[k];
    written = (unsigned char*)r.written;
    bytes = (at + bytes + r.grain - 1) / r.grain, at /= r.grain, bytes -= at;
  } else if (a >= watch.image && a < watch.image_end) {
    at = a - watch.image;
    if (!watch.shared)
      watch.shared = (Shadow*)calloc(watch.image_end - watch.image, sizeof(Shadow));
    shadow = watch.shared;
  } else {
    return complain(outside, k, a);
  }
  const uint32_t thread = own_number();
  for (size_t i = at; i < at + bytes; ++i) {
    if (written) {
      if (!write && !written[i]) complain(unwritten, k, i);
      if (write) written[i] = 1;
    } else {  // a block finds shared memory as it may be
      if (shadow[i].write.segment < watch.block_start) {
        shadow[i] = {};
        if (!write) complain(unwritten, k, i);
      }
    }
    const Problem found = note(shadow[i], write, thread);
    if (found) complain(found, k, i);
  }
}

UNCHECKED inline int find_image(dl_phdr_info* info, size_t, void* own) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& h = info->dlpi_phdr[i];
    const uint64_t begin = info->dlpi_addr + h.p_vaddr;
    if (h.p_type != PT_LOAD || (uint64_t)own - begin >= h.p_memsz) continue;
    watch.image = begin, watch.image_end = begin + h.p_memsz;
    return 1;
  }
  return 0;
}

UNCHECKED inline void start_watch(const void* frame, const uint64_t* ranges, uint64_t count,
                                  uint64_t* report) {
  watch.ranges = (const Range*)ranges, watch.count = count, watch.last = 0;
  watch.report = report;
  watch.shadows = (Shadow**)calloc(count + 1, sizeof(Shadow*));
  watch.frames = (uint64_t)frame - 4096, watch.frames_end = (uint64_t)frame + (256 << 10);
  watch.shared = nullptr;
  watch.segment = watch.block_start = 0;
  report[0] = none;
  if (!watch.image) dl_iterate_phdr(find_image, &watch);
}
UNCHECKED inline void start_block() {
  watch.block_start = ++watch.segment;
  memset(epochs, 0, sizeof(epochs));
}
UNCHECKED inline void end_watch() {
  for (uint64_t k = 0; k < watch.count; ++k) free(watch.shadows[k]);
  free(watch.shadows);
  free(watch.shared);
  watch.count = 0;
}

}  // namespace shim

extern "C" {
UNCHECKED void __tsan_init() {}
UNCHECKED void __tsan_func_entry(void*) {}
UNCHECKED void __tsan_func_exit() {}
#define NNL_ACCESS(n)                                                            \
  UNCHECKED void __tsan_read##n(void* p) { shim::touch(p, n, false); }           \
  UNCHECKED void __tsan_write##n(void* p) { shim::touch(p, n, true); }           \
  UNCHECKED void __tsan_unaligned_read##n(void* p) { shim::touch(p, n, false); } \
  UNCHECKED void __tsan_unaligned_write##n(void* p) { shim::touch(p, n, true); }
NNL_ACCESS(1) NNL_ACCESS(2) NNL_ACCESS(4) NNL_ACCESS(8) NNL_ACCESS(16)
UNCHECKED void __tsan_read_range(void* p, size_t n) { shim::touch(p, n, false); }
UNCHECKED void __tsan_write_range(void* p, size_t n) { shim::touch(p, n, true); }

struct TypeMismatch {
  void *file;
  uint32_t line, column;
};
UNCHECKED void __ubsan_handle_type_mismatch_v1(TypeMismatch* at, uint64_t) {
  shim::complain(shim::misaligned, ~0ull, at->line);
}
#define NNL_UNDEFINED(name)                                    \
  UNCHECKED void __ubsan_handle_##name(TypeMismatch* at, ...) { \
    shim::complain(shim::undefined, ~0ull, at->line);          \
  }
NNL_UNDEFINED(out_of_bounds) NNL_UNDEFINED(shift_out_of_bounds) NNL_UNDEFINED(divrem_overflow)
NNL_UNDEFINED(add_overflow) NNL_UNDEFINED(sub_overflow) NNL_UNDEFINED(mul_overflow)
NNL_UNDEFINED(negate_overflow)
}

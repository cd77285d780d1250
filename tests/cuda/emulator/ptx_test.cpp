// SPDX-License-Identifier: Apache-2.0
// The interpreter for ctypes.
#include "ptx.h"

#include <cstring>
#include <map>

namespace {

struct Ranges : emu::Memory {
  std::map<std::uint64_t, std::size_t> ranges;  // by their starts

  emu::Range allocation(std::uint64_t address) const override {
    auto next = ranges.upper_bound(address);
    if (next == ranges.begin()) return {};
    --next;
    return address - next->first < next->second ? emu::Range{next->first, next->second}
                                                : emu::Range{};
  }
  bool holds(std::uint64_t address, std::size_t bytes) const override {
    const emu::Range r = allocation(address);
    return r.bytes && r.bytes - (address - r.first) >= bytes;
  }
};

char problem[4096];  // of the last call

template <class F>
auto guarded(F f, decltype(f()) otherwise) -> decltype(f()) {
  try {
    return f();
  } catch (const emu::Fault& e) {
    std::strncpy(problem, e.what(), sizeof problem - 1);
    return otherwise;
  }
}

}  // namespace

extern "C" {

const char* emu_problem() { return problem; }

// A module to be freed, or nullptr.
void* emu_parse(const char* ptx, std::size_t bytes) {
  return guarded(
      [&]() -> void* { return new std::shared_ptr<emu::Module>(emu::Module::parse({ptx, bytes})); },
      nullptr);
}

void emu_free(void* module) { delete static_cast<std::shared_ptr<emu::Module>*>(module); }

// bytes of parameters, static shared bytes, local bytes, most threads, registers
int emu_info(void* module, const char* name, std::uint64_t* values) {
  auto& m = **static_cast<std::shared_ptr<emu::Module>*>(module);
  const emu::Kernel* k = m.kernel(name);
  if (!k) return -1;
  const emu::KernelInfo& i = m.info(*k);
  const std::uint64_t v[] = {i.parameter_bytes, i.static_shared, i.local_bytes, i.max_threads,
                             i.registers};
  std::memcpy(values, v, sizeof v);
  return 0;
}

std::byte* emu_global(void* module, const char* name, std::size_t* bytes) {
  const auto [data, n] = (*static_cast<std::shared_ptr<emu::Module>*>(module))->global(name);
  *bytes = n;
  return data;
}

// ranges: starts and bytes of the arrays that the kernel may use.
int emu_run(void* module, const char* name, const unsigned* dims, std::size_t dynamic_shared,
            const char* parameters, const std::uint64_t* ranges, std::size_t count) {
  return guarded(
      [&] {
        auto& m = **static_cast<std::shared_ptr<emu::Module>*>(module);
        const emu::Kernel* k = m.kernel(name);
        if (!k) throw emu::Fault(std::string("there is no kernel ") + name);
        Ranges memory;
        for (std::size_t i = 0; i < count; ++i)
          memory.ranges[ranges[2 * i]] =
              std::max(memory.ranges[ranges[2 * i]], std::size_t(ranges[2 * i + 1]));
        const emu::Launch launch{{dims[0], dims[1], dims[2]},
                                 {dims[3], dims[4], dims[5]},
                                 dynamic_shared,
                                 reinterpret_cast<const std::byte*>(parameters)};
        emu::run(*k, launch, memory);
        return 0;
      },
      -1);
}

}  // extern "C"

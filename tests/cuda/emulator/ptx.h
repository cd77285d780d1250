// SPDX-License-Identifier: Apache-2.0
// Runs PTX, NVIDIA's portable assembly, on the CPU. To be built with FLAGS of tests/cuda/ptx.py:
// without -ffp-contract=off results are wrong where the processor has an FMA, and without -O3 and
// -march=native it is several times slower.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace emu {

// What a launch did wrong, or what a text has that cannot be done.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Range {
  std::uint64_t first = 0, bytes = 0;
};

// Who owns which addresses. Device memory is host memory: addresses are pointers.
struct Memory {
  virtual ~Memory() = default;
  // Whether [address, address + bytes) lies inside one live allocation.
  virtual bool holds(std::uint64_t address, std::size_t bytes) const = 0;
  // The live allocation that an address is in, so that not every access has to ask; no bytes if it
  // is in none, or if this is not known.
  virtual Range allocation(std::uint64_t) const { return {}; }
};

struct Parameter {
  std::string name;
  std::size_t offset, bytes;
};

struct Kernel;  // owned by its Module

struct KernelInfo {
  std::string name;
  std::vector<Parameter> parameters;
  std::size_t parameter_bytes, static_shared, local_bytes;
  unsigned max_threads;  // .maxntid or .reqntid; 1024 without
  unsigned registers;
};

struct Launch {
  unsigned grid[3], block[3];
  std::size_t dynamic_shared;
  const std::byte* parameters;
};

// One PTX text.
class Module {
 public:
  // Throws Fault with the line's number and text on what it cannot do.
  static std::shared_ptr<Module> parse(std::string_view ptx);
  ~Module();

  const Kernel* kernel(std::string_view name) const;  // nullptr if there is none
  const KernelInfo& info(const Kernel& kernel) const;
  // A .global or .const variable; nullptr if there is none.
  std::pair<std::byte*, std::size_t> global(std::string_view name);

  struct Text;

 private:
  explicit Module(std::unique_ptr<Text> text);
  std::unique_ptr<Text> text_;
};

// Runs all blocks, one after the other. Throws Fault: kernel, block, thread, line, address.
void run(const Kernel& kernel, const Launch& launch, const Memory& memory);

}  // namespace emu

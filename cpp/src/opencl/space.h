// SPDX-License-Identifier: Apache-2.0
// The memory of one runner on an OpenCL device, and its steps there.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "nnl/kernel.h"
#include "opencl/device.h"
#include "opencl/stored.h"

namespace nnl::opencl {

// A queue and buffers. Values are called by their roots; each lies at the same place of the arena
// as on the host, or in a buffer of its own.
class Space : public std::enable_shared_from_this<Space> {
 public:
  // Args: steps: those of the program; stays the caller's, as do the kernels.
  Space(Device& device, const Stored& stored, const std::vector<StoredStep>& steps);
  ~Space();
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;

  // The kernels of a step over these roots, 0 for an input left out; null: it has none.
  // ValueError: a kernel does not compile, or is for other devices; the text names the step's op.
  std::shared_ptr<Kernel> kernel(size_t step, const std::vector<int>& in,
                                 const std::vector<int>& out);
  // One copy of a value, to the device or to the host.
  std::shared_ptr<Kernel> copy(int root, size_t bytes, bool to_device);

  // Allocates. Args: offsets: in the arena, by root, negative for those outside; bytes: of those
  // that have a buffer of their own, 0 for others.
  void place(size_t arena, const std::vector<int64_t>& offsets, const std::vector<size_t>& bytes);

  void upload(int root, const void* host, size_t bytes);
  void download(int root, void* host, size_t bytes);

  bool is_timed = false;  // each step waits until it is done

 private:
  friend class Launches;
  struct Place {
    Handle buffer = nullptr;
    uint64_t at = 0;
  };
  Handle buffer(size_t bytes);

  Device& device_;
  const Stored& stored_;
  const std::vector<StoredStep>& steps_;
  Handle queue_;
  std::vector<Handle> buffers_;
  std::vector<Place> places_;
  Place scratch_;
  size_t scratch_bytes_ = 0;
};

}  // namespace nnl::opencl

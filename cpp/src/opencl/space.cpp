// SPDX-License-Identifier: Apache-2.0
#include "opencl/space.h"

#include <algorithm>

namespace nnl::opencl {

// The launches of a step.
class Launches : public Kernel {
 public:
  Launches(std::shared_ptr<Space> space, const StoredStep& step, std::vector<int> roots)
      : space_(std::move(space)), step_(step), roots_(std::move(roots)) {
    for (const StoredLaunch& launch : step.launches) add(launch);
  }
  ~Launches() override {
    for (Handle kernel : kernels_) functions().clReleaseKernel(kernel);
  }
  Launches(const Launches&) = delete;
  Launches& operator=(const Launches&) = delete;

  void run(const Buffers&) override {
    if (!ready_) set_arguments();
    for (size_t k = 0; k < kernels_.size(); ++k) {
      const StoredLaunch& launch = step_.launches[k];
      size_t all[3];
      for (size_t d = 0; d < 3; ++d) all[d] = launch.grid[d] * launch.block[d];
      const Uint rank = all[2] > 1 ? 3 : all[1] > 1 ? 2 : 1;
      check(functions().clEnqueueNDRangeKernel(space_->queue_, kernels_[k], rank, nullptr, all,
                                               launch.block.data(), 0, nullptr, nullptr),
            space_->device_.name() + " refused the kernel " + name(launch));
    }
    if (space_->is_timed)
      check(functions().clFinish(space_->queue_), space_->device_.name() + " has stopped");
  }

 private:
  const std::string& name(const StoredLaunch& launch) const {
    return space_->stored_.kernels[launch.kernel].name;
  }

  void add(const StoredLaunch& launch) {
    Device& device = space_->device_;
    const size_t threads = launch.block[0] * launch.block[1] * launch.block[2];
    if (threads > device.threads())
      throw ValueError("opencl: was saved for devices with work-groups of " +
                       std::to_string(threads) + ", " + device.name() + " has " +
                       std::to_string(device.threads()) + ": save it on such a device");
    const auto arrays = static_cast<int64_t>(roots_.size());
    for (const StoredArray& a : launch.arrays)
      if (a.array < StoredArray::none || a.array > arrays ||
          (a.array == arrays && a.place > step_.workspace))  // an empty part is at the end
        throw ValueError("damaged: the kernel " + name(launch) + " has an array that is not there");
    const StoredKernel& kernel = space_->stored_.kernels[launch.kernel];
    Int error = 0;
    kernels_.push_back(functions().clCreateKernel(device.program(kernel.text, kernel.op),
                                                  kernel.name.c_str(), &error));
    if (error) kernels_.pop_back();
    check(error, "the program of " + kernel.op + " has no kernel " + kernel.name);
  }

  void set_arguments() {
    for (size_t k = 0; k < kernels_.size(); ++k) {
      const StoredLaunch& launch = step_.launches[k];
      Uint at = 0;
      const auto set = [&](size_t bytes, const void* value) {
        check(functions().clSetKernelArg(kernels_[k], at++, bytes, value),
              "a parameter of the kernel " + name(launch));
      };
      for (const StoredArray& a : launch.arrays) {
        Space::Place place;
        if (a.array == static_cast<int64_t>(roots_.size()))
          place = space_->scratch_;
        else if (a.array != StoredArray::none && roots_[static_cast<size_t>(a.array)])
          place = space_->places_[static_cast<size_t>(roots_[static_cast<size_t>(a.array)])];
        place.at = place.buffer ? place.at + a.place : 0;
        set(sizeof(Handle), place.buffer ? &place.buffer : nullptr);
        set(sizeof place.at, &place.at);
      }
      if (!launch.rest.empty()) set(launch.rest.size(), launch.rest.data());
    }
    ready_ = true;
  }

  std::shared_ptr<Space> space_;
  const StoredStep& step_;
  std::vector<int> roots_;
  std::vector<Handle> kernels_;  // of their own: parameters are part of them
  bool ready_ = false;
};

namespace {

class Crossing : public Kernel {
 public:
  Crossing(std::shared_ptr<Space> space, int root, size_t bytes, bool to_device)
      : space_(std::move(space)), root_(root), bytes_(bytes), to_device_(to_device) {}
  void run(const Buffers& b) override {
    if (to_device_)
      space_->upload(root_, b.in[0], bytes_);
    else
      space_->download(root_, b.in[0], bytes_);
  }

 private:
  std::shared_ptr<Space> space_;
  int root_;
  size_t bytes_;
  bool to_device_;
};

}  // namespace

Space::Space(Device& device, const Stored& stored, const std::vector<StoredStep>& steps)
    : device_(device), stored_(stored), steps_(steps), queue_(device.queue()) {}

Space::~Space() {
  functions().clFinish(queue_);
  for (Handle buffer : buffers_) functions().clReleaseMemObject(buffer);
  functions().clReleaseCommandQueue(queue_);
}

std::shared_ptr<Kernel> Space::kernel(size_t step, const std::vector<int>& in,
                                      const std::vector<int>& out) {
  if (step >= steps_.size() || steps_[step].launches.empty()) return nullptr;
  std::vector<int> roots = in;
  roots.insert(roots.end(), out.begin(), out.end());
  scratch_bytes_ = std::max(scratch_bytes_, steps_[step].workspace);
  return std::make_shared<Launches>(shared_from_this(), steps_[step], std::move(roots));
}

std::shared_ptr<Kernel> Space::copy(int root, size_t bytes, bool to_device) {
  return std::make_shared<Crossing>(shared_from_this(), root, bytes, to_device);
}

Handle Space::buffer(size_t bytes) {
  Int error = 0;
  Handle made = functions().clCreateBuffer(device_.context(), read_write,
                                           std::max<size_t>(bytes, 1), nullptr, &error);
  check(error, device_.name() + " has no memory for " + std::to_string(bytes) + " bytes");
  buffers_.push_back(made);
  return made;
}

void Space::place(size_t arena, const std::vector<int64_t>& offsets,
                  const std::vector<size_t>& bytes) {
  Handle whole = buffer(arena);
  scratch_ = {buffer(scratch_bytes_), 0};
  places_.resize(offsets.size());
  for (size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] >= 0)
      places_[i] = {whole, static_cast<uint64_t>(offsets[i])};
    else if (bytes[i])
      places_[i] = {buffer(bytes[i]), 0};
  }
}

void Space::upload(int root, const void* host, size_t bytes) {
  const Place& p = places_[static_cast<size_t>(root)];
  if (bytes)
    check(functions().clEnqueueWriteBuffer(queue_, p.buffer, 1, p.at, bytes, host, 0, nullptr,
                                           nullptr),
          device_.name() + " refused a copy");
}

void Space::download(int root, void* host, size_t bytes) {
  const Place& p = places_[static_cast<size_t>(root)];
  if (bytes)
    check(functions().clEnqueueReadBuffer(queue_, p.buffer, 1, p.at, bytes, host, 0, nullptr,
                                          nullptr),
          device_.name() + " refused a copy");
}

}  // namespace nnl::opencl

// SPDX-License-Identifier: Apache-2.0
// An OpenCL device of this machine, and the kernels that it has compiled.
#pragma once
#include <map>
#include <mutex>
#include <string>

#include "opencl/api.h"

namespace nnl::opencl {

class Device {
 public:
  // Device `number` as Python counts them: those that are no processors first. It is kept.
  // ValueError: there is no OpenCL, or no such device; the text says what to do.
  static Device& of(size_t number);

  Handle context() const { return context_; }
  const std::string& name() const { return name_; }
  size_t threads() const { return threads_; }  // of a work-group, at most

  // The program of a text, compiled once; its binary is kept in the user's cache folder.
  // ValueError: it does not compile; the text has the device's log.
  Handle program(const std::string& text, const std::string& what);

  Handle queue() const;  // a new one

 private:
  explicit Device(Handle device);
  std::string told(Uint what) const;
  Handle from_cache(const std::string& path, const std::string& text) const;
  void to_cache(const std::string& path, const std::string& text, Handle program) const;

  Handle device_, context_;
  std::string name_, options_, identity_;
  size_t threads_ = 0;
  std::map<std::string, Handle> programs_;  // by their texts
  std::mutex mutex_;
};

}  // namespace nnl::opencl

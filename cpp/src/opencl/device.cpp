// SPDX-License-Identifier: Apache-2.0
#include "opencl/device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "files.h"
#include "nnl/crc32.h"

namespace nnl::opencl {
namespace {

std::vector<Handle> all_devices() {
  const Functions& cl = functions();
  Uint count = 0;
  std::vector<Handle> found;
  if (cl.clGetPlatformIDs(0, nullptr, &count) || !count) return found;  // no driver is an error
  std::vector<Handle> platforms(count);
  check(cl.clGetPlatformIDs(count, platforms.data(), nullptr), "clGetPlatformIDs");
  for (Handle platform : platforms) {
    if (cl.clGetDeviceIDs(platform, all_types, 0, nullptr, &count) || !count) continue;
    std::vector<Handle> some(count);
    check(cl.clGetDeviceIDs(platform, all_types, count, some.data(), nullptr), "clGetDeviceIDs");
    found.insert(found.end(), some.begin(), some.end());
  }
  std::stable_partition(found.begin(), found.end(), [&](Handle device) {
    Bits type = 0;
    check(cl.clGetDeviceInfo(device, device_type, sizeof type, &type, nullptr), "clGetDeviceInfo");
    return !(type & type_cpu);
  });
  return found;
}

// NNL_CACHE_DIR/opencl, or nnl/opencl in the user's cache folder; "" where there is none.
std::string cache_folder() {
  const auto said = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  const std::string own = said("NNL_CACHE_DIR"), base = said("XDG_CACHE_HOME"), home = said("HOME");
  if (!own.empty()) return own + "/opencl";
  if (!base.empty()) return base + "/nnl/opencl";
  return home.empty() ? "" : home + "/.cache/nnl/opencl";
}

}  // namespace

Device& Device::of(size_t number) {
  static std::mutex mutex;
  static std::map<size_t, Device*> known;  // drivers may be gone when a process ends
  const std::lock_guard<std::mutex> lock(mutex);
  Device*& device = known[number];
  if (device) return *device;
  const std::vector<Handle> devices = all_devices();
  if (devices.empty())
    throw ValueError(
        "opencl: no driver has a device on this machine; install your vendor's, or for processors "
        "PoCL (apt-get install pocl-opencl-icd)");
  if (number >= devices.size())
    throw ValueError("opencl: there is no device " + std::to_string(number) + ", there are " +
                     std::to_string(devices.size()) + ", counted from 0");
  device = new Device(devices[number]);
  return *device;
}

Device::Device(Handle device) : device_(device) {
  const Functions& cl = functions();
  name_ = told(device_name);
  options_ = "-cl-std=CL1.2";
  if ((" " + told(extensions) + " ").find(" cl_khr_fp64 ") != std::string::npos)
    options_ += " -DHAS_DOUBLE";
  identity_ = name_ + "\n" + told(driver_version) + "\n" + told(device_version) + "\n" + options_;
  check(cl.clGetDeviceInfo(device, work_group_size, sizeof threads_, &threads_, nullptr),
        "clGetDeviceInfo");
  Int error = 0;
  context_ = cl.clCreateContext(nullptr, 1, &device, nullptr, nullptr, &error);
  check(error, name_ + ": clCreateContext");
}

std::string Device::told(Uint what) const {
  const Functions& cl = functions();
  size_t bytes = 0;
  check(cl.clGetDeviceInfo(device_, what, 0, nullptr, &bytes), "clGetDeviceInfo");
  std::string text(bytes, '\0');
  check(cl.clGetDeviceInfo(device_, what, bytes, text.data(), nullptr), "clGetDeviceInfo");
  return text.substr(0, text.find('\0'));
}

Handle Device::queue() const {
  Int error = 0;
  Handle made = functions().clCreateCommandQueue(context_, device_, 0, &error);
  check(error, name_ + ": clCreateCommandQueue");
  return made;
}

Handle Device::program(const std::string& text, const std::string& what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Handle& known = programs_[text];
  if (known) return known;
  const Functions& cl = functions();
  std::string path = cache_folder();
  if (!path.empty()) {
    const std::string key = identity_ + text + '\0';
    char name[32];
    std::snprintf(name, sizeof name, "/%08x%08zx.bin", crc32(key.data(), key.size()), key.size());
    path += name;
    if ((known = from_cache(path, text))) return known;
  }
  Int error = 0;
  const char* source = text.c_str();
  Handle made = cl.clCreateProgramWithSource(context_, 1, &source, nullptr, &error);
  check(error, name_ + ": clCreateProgramWithSource");
  error = cl.clBuildProgram(made, 1, &device_, options_.c_str(), nullptr, nullptr);
  if (error) {
    size_t bytes = 0;
    cl.clGetProgramBuildInfo(made, device_, build_log, 0, nullptr, &bytes);
    std::string log(bytes, '\0');
    cl.clGetProgramBuildInfo(made, device_, build_log, bytes, log.data(), nullptr);
    cl.clReleaseProgram(made);
    throw ValueError("opencl: the kernel of " + what + " does not compile on " + name_ +
                     ": error " + std::to_string(error) + ": " + log.substr(0, log.find('\0')));
  }
  if (!path.empty()) to_cache(path, text, made);
  return known = made;
}

// A file of the cache: what it is of, a zero, and the binary.
Handle Device::from_cache(const std::string& path, const std::string& text) const {
  const Functions& cl = functions();
  std::error_code missing;
  if (!std::filesystem::is_regular_file(path, missing)) return nullptr;
  try {
    const MappedFile file(path);
    const std::string key = identity_ + text + '\0';
    if (file.size() <= key.size() || std::memcmp(file.data(), key.data(), key.size()))
      return nullptr;
    const size_t bytes = file.size() - key.size();
    const auto* binary = reinterpret_cast<const unsigned char*>(file.data()) + key.size();
    Int status = 0, error = 0;
    Handle made =
        cl.clCreateProgramWithBinary(context_, 1, &device_, &bytes, &binary, &status, &error);
    if (error || status) return nullptr;
    if (!cl.clBuildProgram(made, 1, &device_, options_.c_str(), nullptr, nullptr)) return made;
    cl.clReleaseProgram(made);
  } catch (const ValueError&) {  // it went, or cannot be read: it is compiled again
  }
  return nullptr;
}

void Device::to_cache(const std::string& path, const std::string& text, Handle program) const {
  const Functions& cl = functions();
  size_t bytes = 0;
  if (cl.clGetProgramInfo(program, binary_sizes, sizeof bytes, &bytes, nullptr) || !bytes) return;
  std::string binary(bytes, '\0');
  char* place = binary.data();
  if (cl.clGetProgramInfo(program, binaries, sizeof place, &place, nullptr)) return;
  try {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    NewFile file(path);
    file.write(identity_ + text + '\0');
    file.write(binary);
    file.finish();
  } catch (const std::exception&) {  // a folder that nobody may write to: it is compiled each time
  }
}

}  // namespace nnl::opencl

// SPDX-License-Identifier: Apache-2.0
#include "opencl/stored.h"

#include <stdexcept>

#include "nnl/json.h"

namespace nnl::opencl {
namespace {

constexpr int64_t version = 1;

size_t size_of(const Json& json) {
  if (json.integer() < 0) throw ValueError("a size is negative");
  return static_cast<size_t>(json.integer());
}

std::string bytes_of(const std::string& hex) {
  const auto digit = [](char c) {
    const size_t at = std::string_view("0123456789abcdef").find(c);
    if (at == std::string_view::npos) throw ValueError("parameters are no hexadecimal digits");
    return static_cast<int>(at);
  };
  if (hex.size() % 2) throw ValueError("parameters are half a byte too long");
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1]));
  return bytes;
}

std::array<size_t, 3> three(const Json& json) {
  const Json::Array& n = json.array();
  if (n.size() != 3) throw ValueError("a grid has no three sizes");
  std::array<size_t, 3> found = {size_of(n[0]), size_of(n[1]), size_of(n[2])};
  for (size_t k : found)
    if (!k || k > size_t{1} << 31) throw ValueError("a grid is empty or too large");
  return found;
}

StoredStep step_of(const Json& json, size_t kernels) {
  StoredStep step;
  if (json.is_null()) return step;
  step.workspace = size_of(json.at("workspace"));
  for (const Json& one : json.at("launches").array()) {
    const Json::Array& parts = one.array();
    StoredLaunch launch{size_of(parts.at(0)),
                        three(parts.at(1)),
                        three(parts.at(2)),
                        bytes_of(parts.at(3).text()),
                        {}};
    if (launch.kernel >= kernels) throw ValueError("there is no such kernel");
    for (const Json& array : parts.at(4).array()) {
      const Json::Array& at = array.array();
      launch.arrays.push_back({at.at(0).integer(), size_of(at.at(1))});
    }
    step.launches.push_back(std::move(launch));
  }
  return step;
}

}  // namespace

Stored stored_kernels(std::string_view json) try {
  const Json data = Json::parse(json);
  if (data.at("version").integer() != version)
    throw ValueError("its kernels are of another version: save it again");
  Stored found;
  const Json::Array& pieces = data.at("pieces").array();
  for (const Json& one : data.at("kernels").array()) {
    const Json::Array& parts = one.array();
    StoredKernel kernel{parts.at(0).text(), parts.at(1).text(), ""};
    for (const Json& piece : parts.at(2).array()) kernel.text += pieces.at(size_of(piece)).text();
    found.kernels.push_back(std::move(kernel));
  }
  for (const auto& [name, steps] : data.at("programs").object())
    for (const Json& step : steps.array())
      found.programs[name].push_back(step_of(step, found.kernels.size()));
  return found;
} catch (const std::out_of_range&) {
  throw ValueError("damaged: its kernels are not what nnl writes");
}

}  // namespace nnl::opencl

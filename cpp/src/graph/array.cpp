// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "graph.h"
#include "nnl/threads.h"

namespace nnl {

using graph::Storage;

namespace {

// The elements of an array as another type, in new memory.
std::shared_ptr<Memory> converted(const Storage& from, const Spec& to) {
  Signature s;
  s.in = {from.spec}, s.in_given = {true}, s.out = {to};
  std::unordered_map<std::string, Attribute> attributes;
  attributes["dtype"] = std::string(name_of(to.dtype)), attributes["whole"] = std::string();
  s.attributes = Attributes(std::move(attributes));
  const auto kernel = make_kernel("cast", s);
  if (!kernel)
    throw ValueError("data: " + from.spec.text() + " is not read as " + name_of(to.dtype));
  auto memory = std::make_shared<Memory>(to.bytes());
  const ThreadScope scope;
  const Memory scratch(kernel->workspace());
  void* in[] = {from.memory->data()};
  void* out[] = {memory->data()};
  kernel->run({in, out, scratch.data()});
  return memory;
}

}  // namespace

void* Storage::allocated() {
  if (!memory) memory = std::make_shared<Memory>(spec.bytes());
  return memory->data();
}

void* Storage::allocated(DType as) {
  if (spec.dtype != as) spec.dtype = as, memory = nullptr;
  return allocated();
}

void* Storage::readable() {
  void* data = allocated();
  if (zero) std::memset(data, 0, spec.bytes());
  zero = false;
  return data;
}

Array::Array(Spec spec) : storage_(std::make_shared<Storage>()) {
  double bytes = static_cast<double>(bytes_of(spec.dtype));
  for (int64_t n : spec.shape) {
    if (n < 0) throw ValueError("Array: the shape of " + spec.text() + " has a size below 0");
    bytes *= static_cast<double>(std::max<int64_t>(n, 1));
  }
  if (bytes > 0x1p62) throw ValueError("Array: " + spec.text() + " is larger than any memory");
  storage_->spec = std::move(spec);
}

const Spec& Array::spec() const {
  if (!storage_) throw ValueError("Array: there is none");
  return storage_->spec;
}

void* Array::as(DType type, bool write_only) const {
  if (spec().dtype != type) {
    Spec to = storage_->spec;
    to.dtype = type;
    const bool empty = write_only || storage_->zero || !storage_->value;
    storage_->memory = empty ? nullptr : converted(*storage_, to);
    storage_->spec = to;
  }
  return bytes();
}

void* Array::bytes() const {
  spec();
  if (!storage_->value) storage_->value = storage_->zero = true;
  return storage_->readable();
}

void Array::fill(double value) {
  if (value == 0) return zero();
  if (spec().dtype != DType::f32) as(DType::f32, true);
  auto* data = static_cast<float*>(storage_->allocated());
  std::fill_n(data, static_cast<size_t>(size()), static_cast<float>(value));
  storage_->zero = false, storage_->value = true;
}

void Array::zero() {
  spec();
  storage_->zero = storage_->value = true;
}

bool Array::is_zero() const { return storage_ && storage_->zero; }
bool Array::has_value() const { return storage_ && storage_->value; }

void Array::copy_from(const Array& other) {
  if (shape() != other.shape())
    throw ValueError("copy_from: got " + other.spec().text() + ", wanted the shape of " +
                     spec().text());
  if (!other.has_value()) throw ValueError("copy_from: " + other.spec().text() + " has no value");
  if (storage_ == other.storage_) return;
  storage_->spec = other.spec(), storage_->memory = nullptr, storage_->value = true;
  storage_->zero = other.is_zero();
  if (!storage_->zero)
    std::memcpy(storage_->allocated(), other.storage_->readable(), storage_->spec.bytes());
}

}  // namespace nnl

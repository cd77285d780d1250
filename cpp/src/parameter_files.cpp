// SPDX-License-Identifier: Apache-2.0
#include "nnl/parameter_files.h"

#include <algorithm>
#include <cstring>

#include "files.h"
#include "hdf5_writer.h"
#include "lowering.h"
#include "nnl/hdf5.h"
#include "nnl/plan.h"
#include "nnp/message.h"
#include "npy.h"
#include "safetensors.h"
#include "wire.h"
#include "zip.h"

namespace nnl {
namespace {

// Fields of NNablaProtoBuf, Parameter and Shape.
enum : uint32_t {
  parameter = 200,
  variable_name = 1,
  shape = 20,
  data = 100,
  need_grad = 101,
  dim = 1
};
// A field that no message has, so that others skip it, with the size of what follows.
constexpr std::string_view seal("\xf9\xff\xff\xff\x0f", 5);

std::string extension_of(const std::string& path) {
  const size_t dot = path.find_last_of("./");
  return dot == path.npos || path[dot] == '/' ? "" : path.substr(dot);
}

// What parameters read from a file lie in: the file itself, where their bytes are in order there.
struct Held {
  explicit Held(const std::string& path) : file(path) {}

  MappedFile file;
  std::unique_ptr<Safetensors> arrays;
  std::vector<std::unique_ptr<Memory>> copies;
  std::string binary;  // of what was text

  const void* aligned(const char* at, const Spec& spec) {
    if (reinterpret_cast<uintptr_t>(at) % bytes_of(spec.dtype) == 0) return at;
    copies.push_back(std::make_unique<Memory>(spec.bytes()));
    return std::memcpy(copies.back()->data(), at, spec.bytes());
  }
};

void read_safetensors(Held& held, std::vector<StoredParameter>& found) {
  held.arrays = std::make_unique<Safetensors>(held.file.data(), held.file.size());
  for (const auto& [name, array] : held.arrays->arrays)
    if (name != "nnl.program" && name != "nnl.language")
      found.push_back({name, array.spec, array.data});
}

DType type_of(const std::string& numpy) {
  static const std::pair<const char*, DType> types[] = {
      {"<f2", DType::f16}, {"<f4", DType::f32}, {"<f8", DType::f64}, {"<i1", DType::i8},
      {"<i2", DType::i16}, {"<i4", DType::i32}, {"<i8", DType::i64}, {"<u1", DType::u8},
      {"<u2", DType::u16}, {"<u4", DType::u32}, {"<u8", DType::u64}};
  for (const auto& [name, type] : types)
    if (numpy == name) return type;
  throw ValueError("numbers of the type " + numpy + " are not known");
}

void read_hdf5(std::string_view file, Held& held, std::vector<StoredParameter>& found) {
  Bytes bytes;
  bytes.data = reinterpret_cast<const uint8_t*>(file.data()), bytes.size = file.size();
  std::vector<Hdf5Array> arrays;
  try {
    arrays = hdf5_arrays(bytes);
  } catch (const ValueError& e) {
    throw ValueError(std::string("damaged, or HDF5 as h5py does not write it: ") + e.what());
  }
  std::vector<std::pair<int64_t, StoredParameter>> ordered;
  for (const Hdf5Array& a : arrays) {
    StoredParameter p{a.name, {a.shape, type_of(a.dtype), Layout::plain}, nullptr};
    p.data = held.aligned(file.data() + a.start, p.spec);
    auto index = static_cast<int64_t>(ordered.size());
    for (const auto& [name, value] : a.attributes) {
      if (name == "index") index = value;
      if (name == "need_grad") p.need_grad = value != 0;
    }
    ordered.emplace_back(index, std::move(p));
  }
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [index, p] : ordered) found.push_back(std::move(p));
}

StoredParameter read_message(std::string_view message, Held& held) {
  StoredParameter p{"", {{}, DType::f32, Layout::plain}, nullptr, false};
  std::string_view numbers;
  std::string single;  // numbers that stand one by one
  double bytes = 4;
  const auto add_size = [&](uint64_t n) {
    bytes *= static_cast<double>(std::max<uint64_t>(n, 1));
    if (p.spec.shape.size() == 64 || n > INT64_MAX || bytes > 0x1p62)
      throw ValueError("a shape is larger than any memory");
    p.spec.shape.push_back(static_cast<int64_t>(n));
  };
  for (Wire field(message); field.next();) {
    if (field.number == variable_name && field.kind == Wire::run) {
      p.name = field.bytes;
    } else if (field.number == shape && field.kind == Wire::run) {
      for (Wire sizes(field.bytes); sizes.next();) {
        if (sizes.number != dim) continue;
        if (sizes.kind == Wire::varint) add_size(sizes.value);
        if (sizes.kind == Wire::run)
          for (Wire packed(sizes.bytes); packed.more();) add_size(packed.take_varint());
      }
    } else if (field.number == data && field.kind == Wire::run) {
      numbers = field.bytes;
    } else if (field.number == data && field.kind == Wire::fixed32) {
      single += field.bytes;
    } else if (field.number == need_grad && field.kind == Wire::varint) {
      p.need_grad = field.value != 0;
    }
  }
  if (!single.empty()) {
    held.copies.push_back(std::make_unique<Memory>(single.size()));
    std::memcpy(held.copies.back()->data(), single.data(), single.size());
    numbers = {reinterpret_cast<const char*>(held.copies.back()->data()), single.size()};
  }
  if (numbers.size() != p.spec.bytes())
    throw ValueError("'" + p.name + "' has " + std::to_string(numbers.size() / 4) + " values for " +
                     p.spec.text());
  p.data = held.aligned(numbers.data(), p.spec);
  return p;
}

void read_protobuf(std::string_view message, Held& held, std::vector<StoredParameter>& found) {
  if (message.substr(0, seal.size()) == seal && message.size() >= seal.size() + 8) {
    uint64_t size = 0;
    std::memcpy(&size, message.data() + seal.size(), 8);
    message.remove_prefix(seal.size() + 8);
    if (size != message.size())
      throw ValueError("damaged: " + std::to_string(message.size()) + " bytes of " +
                       std::to_string(size) + " are there");
  }
  for (Wire field(message); field.next();)
    if (field.number == parameter && field.kind == Wire::run)
      found.push_back(read_message(field.bytes, held));
}

void read_text(std::string_view text, Held& held, std::vector<StoredParameter>& found) {
  held.binary = binary_of_text("NNablaProtoBuf", text);
  read_protobuf(held.binary, held, found);
}

// Arrays that numpy has saved by their names.
void read_npz(Held& held, std::vector<StoredParameter>& found) {
  const Zip archive(held.file.bytes());
  for (const Zip::Member& member : archive.members()) {
    if (extension_of(member.name) != ".npy") continue;
    held.copies.push_back(std::make_unique<Memory>(member.size));
    char* content = reinterpret_cast<char*>(held.copies.back()->data());
    Zip::unpack(member, content);
    const std::string name = member.name.substr(0, member.name.size() - 4);
    try {
      const NpyArray a = npy_array({content, member.size});
      found.push_back({name, a.spec, held.aligned(a.data, a.spec)});
    } catch (const ValueError& e) {
      throw ValueError("'" + name + "' " + e.what());
    }
  }
}

// Those of all the files in an archive that hold any.
void read_archive(Held& held, std::vector<StoredParameter>& found) {
  const Zip archive(held.file.bytes());
  for (const Zip::Member& member : archive.members()) {
    const std::string kind = extension_of(member.name);
    if (kind != ".h5" && kind != ".protobuf") continue;
    held.copies.push_back(std::make_unique<Memory>(member.size));
    char* content = reinterpret_cast<char*>(held.copies.back()->data());
    Zip::unpack(member, content);
    (kind == ".h5" ? read_hdf5 : read_protobuf)({content, member.size}, held, found);
  }
}

// The same values as float32, for formats that have nothing else; `memory` holds them.
StoredParameter as_type(const StoredParameter& p, DType type, std::unique_ptr<Memory>& memory) {
  StoredParameter out = p;
  out.spec.dtype = type;
  if (type == p.spec.dtype) return out;
  memory = std::make_unique<Memory>(out.spec.bytes());
  if (out.spec.size()) run_once(*conversion("cast", p.spec, out.spec), p.data, memory->data());
  out.data = memory->data();
  return out;
}

void write_safetensors(NewFile& file, std::vector<StoredParameter> parameters) {
  std::stable_sort(parameters.begin(), parameters.end(), [](const auto& a, const auto& b) {
    return bytes_of(a.spec.dtype) > bytes_of(b.spec.dtype);
  });
  std::vector<std::pair<std::string, Spec>> specs;
  for (const StoredParameter& p : parameters) specs.emplace_back(p.name, p.spec);
  file.write(safetensors_header(specs));
  for (const StoredParameter& p : parameters) file.write(p.data, p.spec.bytes());
}

void write_hdf5(NewFile& file, std::vector<StoredParameter> parameters) {
  std::vector<std::unique_ptr<Memory>> memories(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    StoredParameter& p = parameters[i];
    if (p.spec.dtype == DType::boolean) p.spec.dtype = DType::u8;
    if (p.spec.dtype == DType::bf16) p = as_type(p, DType::f32, memories[i]);
  }
  const Hdf5File made = hdf5_file(parameters);
  const auto fill_to = [&](uint64_t at) { file.write(std::string(at - file.size(), '\0')); };
  file.write(made.structure);
  for (size_t i = 0; i < parameters.size(); ++i) {
    fill_to(made.starts[i]);
    file.write(parameters[i].data, parameters[i].spec.bytes());
  }
  fill_to(made.size);
}

std::string head_of(const StoredParameter& p) {
  std::string sizes, head;
  for (int64_t n : p.spec.shape) put_number(sizes, dim, static_cast<uint64_t>(n));
  put_run(head, variable_name, p.name);
  put_run(head, shape, sizes);
  if (p.need_grad) put_number(head, need_grad, 1);
  if (p.spec.bytes()) put_run_head(head, data, p.spec.bytes());
  return head;
}

void write_protobuf(NewFile& file, const std::vector<StoredParameter>& parameters) {
  uint64_t size = 0;
  std::vector<std::string> heads;
  for (const StoredParameter& p : parameters) {
    StoredParameter as = p;
    as.spec.dtype = DType::f32;
    std::string head = head_of(as), before;
    put_run_head(before, parameter, head.size() + as.spec.bytes());
    heads.push_back(before + head);
    size += heads.back().size() + as.spec.bytes();
  }
  constexpr uint64_t most = 0x7fffffff;  // bytes of a message; nobody reads larger ones
  if (size > most)
    throw ValueError(std::to_string(size) +
                     " bytes of numbers, and a protobuf message has at most " +
                     std::to_string(most) + ": .h5 and .safetensors hold more");
  file.write(seal);
  file.write(&size, 8);
  for (size_t i = 0; i < parameters.size(); ++i) {
    std::unique_ptr<Memory> memory;
    const StoredParameter p = as_type(parameters[i], DType::f32, memory);
    file.write(heads[i]);
    file.write(p.data, p.spec.bytes());
  }
}

}  // namespace

StoredParameters read_parameters(const std::string& path) {
  const std::string kind = extension_of(path);
  StoredParameters found;
  const auto held = std::make_shared<Held>(path);
  found.memory = held;
  try {
    if (kind == ".safetensors" || kind == ".nnlp") {
      read_safetensors(*held, found.all);
    } else if (kind == ".h5") {
      read_hdf5(held->file.bytes(), *held, found.all);
    } else if (kind == ".protobuf") {
      read_protobuf(held->file.bytes(), *held, found.all);
    } else if (kind == ".nntxt" || kind == ".prototxt") {
      read_text(held->file.bytes(), *held, found.all);
    } else if (kind == ".npz") {
      read_npz(*held, found.all);
    } else if (kind == ".nnp") {
      read_archive(*held, found.all);
    } else {
      throw ValueError(
          "files of parameters are .safetensors, .h5, .protobuf, .nntxt, .npz, .nnp and .nnlp");
    }
  } catch (const ValueError& e) {
    throw ValueError(path + ": " + e.what());
  }
  return found;
}

void write_parameters(const std::string& path, const std::vector<StoredParameter>& parameters) {
  const std::string kind = extension_of(path);
  if (kind != ".safetensors" && kind != ".h5" && kind != ".protobuf")
    throw ValueError(path + ": files of parameters are .safetensors, .h5 and .protobuf");
  NewFile file(path);
  try {
    if (kind == ".safetensors") {
      write_safetensors(file, parameters);
    } else if (kind == ".h5") {
      write_hdf5(file, parameters);
    } else {
      write_protobuf(file, parameters);
    }
  } catch (const ValueError& e) {
    const std::string what = e.what();
    throw what.rfind(path, 0) == 0 ? e : ValueError(path + ": " + what);
  }
  file.finish();
}

}  // namespace nnl

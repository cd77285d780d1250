// SPDX-License-Identifier: Apache-2.0
#include "hdf5_writer.h"

#include <algorithm>
#include <map>
#include <memory>

#include "hdf5_types.h"

namespace nnl {
namespace {

using namespace hdf5;

constexpr u64 undefined = ~u64{0};
constexpr u16 leaf_k = 4;  // a symbol table has room for twice as many names
constexpr size_t names_in_table = 2 * leaf_k;

std::string padded(std::string text, size_t to = 8) {
  text.resize((text.size() + to - 1) / to * to, '\0');
  return text;
}

std::string message(u16 kind, std::string data) {
  data = padded(std::move(data));
  return packed(kind, static_cast<u16>(data.size()), u8{0}, u8{0}, u16{0}) + data;
}

std::string type_of(DType type) {
  switch (type) {
    case DType::f16:
      return real(2, 5, 10);
    case DType::f32:
      return real(4, 8, 23);
    case DType::f64:
      return real(8, 11, 52);
    case DType::i8:
    case DType::i16:
    case DType::i32:
    case DType::i64:
      return integer(static_cast<u32>(bytes_of(type)), true);
    case DType::u8:
    case DType::u16:
    case DType::u32:
    case DType::u64:
      return integer(static_cast<u32>(bytes_of(type)), false);
    default:
      throw ValueError(std::string("HDF5 has no ") + name_of(type));
  }
}

std::string space_of(const Shape& shape) {
  std::string out = packed(u8{1}, static_cast<u8>(shape.size()), u8{0}, u8{0}, u32{0});
  for (int64_t n : shape) out += packed(n);
  return out;
}

std::string attribute(const std::string& name, const std::string& type, const std::string& value) {
  const std::string space = space_of({});
  return message(0xC, packed(u8{1}, u8{0}, static_cast<u16>(name.size() + 1),
                             static_cast<u16>(type.size()), static_cast<u16>(space.size())) +
                          padded(name + '\0') + padded(type) + space + value);
}

std::string object(const std::string& messages, u16 count) {
  return packed(u8{1}, u8{0}, count, u32{1}, static_cast<u32>(messages.size()), u32{0}) + messages;
}

// A group: other groups, and arrays by their index. Names are in the order of their bytes.
struct Group {
  std::map<std::string, Group> groups;
  std::map<std::string, size_t> arrays;
};

class Writer {
 public:
  explicit Writer(const std::vector<StoredParameter>& arrays) : arrays_(arrays) {
    Group root;
    for (size_t i = 0; i < arrays.size(); ++i) add(root, i);
    // where an array belongs is known when the size of the structure is: two passes, of one size
    starts_.assign(arrays.size(), 0);
    const size_t start = (structure(root, 0).size() + 63) / 64 * 64;
    u64 at = start;
    for (size_t i = 0; i < arrays.size(); ++i) {
      starts_[i] = at;
      at += (arrays[i].spec.bytes() + 63) / 64 * 64;
    }
    file = {structure(root, at), starts_, at};
    file.structure.resize(start, '\0');
  }

  Hdf5File file;

 private:
  void add(Group& root, size_t index) {
    const std::string& name = arrays_[index].name;
    const auto fail = [&](const char* what) {
      throw ValueError("the name '" + name + "' " + what);
    };
    if (std::count(name.begin(), name.end(), '/') >= deepest) fail("is in too many groups");
    Group* group = &root;
    for (size_t begin = 0;;) {
      const size_t end = name.find('/', begin);
      const std::string part = name.substr(begin, end - begin);
      if (part.empty() || part == "." || part.find('\0') != part.npos) fail("is no path");
      if (group->arrays.count(part)) fail("is in an array, or there twice");
      if (end == name.npos) {
        if (group->groups.count(part)) fail("is a group, too");
        group->arrays[part] = index;
        return;
      }
      group = &group->groups[part];
      begin = end + 1;
    }
  }

  std::string structure(const Group& root, u64 size) {
    most_tables_ = 1;
    count(root);
    const u16 tree_k = static_cast<u16>(std::max<size_t>(16, (most_tables_ + 1) / 2));
    tree_k_ = tree_k;
    out_.assign(96, '\0');
    const u64 at = group(root);
    const std::string head = std::string("\x89HDF\r\n\x1a\n") +
                             packed(u32{0}, u8{0}, u8{8}, u8{8}, u8{0}, leaf_k, tree_k, u32{0},
                                    u64{0}, undefined, size, undefined, u64{0}, at) +
                             packed(u32{0}, u32{0}, u64{0}, u64{0});
    return out_.replace(0, 96, head);
  }

  void count(const Group& group) {
    const size_t names = group.groups.size() + group.arrays.size();
    most_tables_ = std::max(most_tables_, (names + names_in_table - 1) / names_in_table);
    if (most_tables_ > 65000) throw ValueError("HDF5: a group has too many names");
    for (const auto& [name, inner] : group.groups) count(inner);
  }

  u64 put(const std::string& data) {
    const u64 at = out_.size();
    out_ += padded(data);
    return at;
  }

  // Returns where the header of the group lies: its symbol tables, the tree that finds them, and
  // the heap of names.
  u64 group(const Group& group) {
    std::map<std::string, u64> objects;
    for (const auto& [name, inner] : group.groups) objects[name] = this->group(inner);
    for (const auto& [name, index] : group.arrays) objects[name] = array(index);
    std::string names(8, '\0'), tree;
    u16 tables = 0;
    for (auto next = objects.begin(); next != objects.end(); ++tables) {
      std::string entries;
      u16 n = 0;
      u64 last = 0;
      for (; n < names_in_table && next != objects.end(); ++n, ++next) {
        last = names.size();
        entries += packed(last, next->second, u32{0}, u32{0}, u64{0}, u64{0});
        names += padded(next->first + '\0');
      }
      entries.resize(names_in_table * 40, '\0');
      tree += packed(put("SNOD" + packed(u8{1}, u8{0}, n) + entries), last);
    }
    tree.resize((size_t{2} * tree_k_ * 2 + 1) * 8 - 8, '\0');
    const u64 root =
        put("TREE" + packed(u8{0}, u8{0}, tables, undefined, undefined, u64{0}) + tree);
    const u64 text = put(names);
    const u64 heap = put("HEAP" + packed(u32{0}, u64{names.size()}, u64{1}, text));
    return put(object(message(0x11, packed(root, heap)), 1));
  }

  u64 array(size_t index) {
    const StoredParameter& p = arrays_[index];
    const u64 bytes = p.spec.bytes();
    const std::string messages =
        message(0x1, space_of(p.spec.shape)) + message(0x3, type_of(p.spec.dtype)) +
        message(0x8, packed(u8{3}, u8{1}, bytes ? starts_[index] : undefined, bytes)) +
        attribute("need_grad", boolean(), packed(static_cast<u8>(p.need_grad))) +
        attribute("index", integer(8, true), packed(static_cast<int64_t>(index)));
    return put(object(messages, 5));
  }

  const std::vector<StoredParameter>& arrays_;
  std::vector<u64> starts_;
  size_t most_tables_ = 1;
  u16 tree_k_ = 16;
  std::string out_;
};

}  // namespace

Hdf5File hdf5_file(const std::vector<StoredParameter>& arrays) { return Writer(arrays).file; }

}  // namespace nnl

// SPDX-License-Identifier: Apache-2.0
#include "nnl/hdf5.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "hdf5_types.h"
#include "nnl/errors.h"

namespace nnl {
namespace {

using namespace hdf5;

constexpr uint64_t kMaxRank = 32;  // as the HDF5 library

// Messages of an object header by their numbers.
enum Kind {
  kSpace = 0x1,
  kType = 0x3,
  kLayout = 0x8,
  kAttribute = 0xC,
  kMore = 0x10,
  kGroup = 0x11
};

// Nothing, fill values, times of modification.
bool is_skipped(int kind) {
  return kind == 0x0 || kind == 0x4 || kind == 0x5 || kind == 0xE || kind == 0x12;
}

class Fields {
 public:
  explicit Fields(const std::string& data, size_t at = 0, size_t end = std::string::npos)
      : data_(data), at_(at), end_(std::min(end, data.size())) {}

  template <class T>
  T take() {
    T value;
    std::memcpy(&value, data_.data() + moved(sizeof value), sizeof value);
    return value;
  }
  std::string text(size_t size) { return data_.substr(moved(size), size); }
  void skip(size_t size) { moved(size); }
  size_t left() const { return end_ - at_; }

 private:
  size_t moved(size_t size) {
    if (at_ > end_ || size > end_ - at_) throw ValueError("cut off");
    at_ += size;
    return at_ - size;
  }

  const std::string& data_;
  size_t at_, end_;
};

std::string without_zeros_behind(std::string text) {
  text.resize(text.find_last_not_of('\0') + 1);
  return text;
}

using Types =
    std::unordered_map<std::string, std::string>;  // of numpy, by the description in files

Types integers() {
  Types types;
  for (u32 size : {1, 2, 4, 8})
    for (bool is_signed : {false, true})
      types[without_zeros_behind(integer(size, is_signed))] =
          (is_signed ? "<i" : "<u") + std::to_string(size);
  return types;
}

const Types& array_types() {
  static const Types types = [] {
    Types t = integers();
    t[without_zeros_behind(real(2, 5, 10))] = "<f2";
    t[without_zeros_behind(real(4, 8, 23))] = "<f4";
    t[without_zeros_behind(real(8, 11, 52))] = "<f8";
    return t;
  }();
  return types;
}

const Types& attribute_types() {
  static const Types types = [] {
    Types t = integers();
    t[boolean()] = "<i1";
    return t;
  }();
  return types;
}

int64_t integer_of(const std::string& bytes, bool is_signed) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data(), bytes.size());
  if (is_signed) {
    const unsigned unused = 64 - 8 * static_cast<unsigned>(bytes.size());
    return static_cast<int64_t>(value << unused) >> unused;
  }
  if (value > INT64_MAX) throw ValueError("a large number");
  return static_cast<int64_t>(value);
}

class Reader {
 public:
  // In a good file nothing overlaps, so what is read, names included, is no larger than it.
  explicit Reader(const Bytes& file) : file_(file), left_(file.size) {
    const std::string block = take(0, 96);
    Fields f(block);
    const bool known = f.text(8) == "\x89HDF\r\n\x1a\n" && f.take<u8>() == 0;
    f.skip(4);
    const bool offsets = f.take<u8>() == 8, lengths = f.take<u8>() == 8;
    f.skip(9);
    const auto base = f.take<uint64_t>();
    f.skip(8);
    const auto end = f.take<uint64_t>();
    f.skip(16);
    const auto root = f.take<uint64_t>();
    if (!known || !offsets || !lengths || base || end > file.size) throw ValueError("superblock");
    visit("", root, 0);
  }

  std::vector<Hdf5Array> arrays() {
    std::sort(runs_.begin(), runs_.end());
    uint64_t end = 0;
    for (const auto& [start, size] : runs_) {
      if (start < end) throw ValueError("one run of numbers under two names");
      end = start + size;
    }
    return std::move(found_);
  }

 private:
  std::string take(uint64_t at, uint64_t size) {
    if (size > left_) throw ValueError("more structure than file");
    left_ -= size;
    return file_.take(at, size);
  }

  // Finds the array there, or those of the group.
  void visit(const std::string& path, uint64_t at, int depth) {
    const std::string head = take(at, 16);
    Fields h(head);
    const auto version = h.take<u8>();
    h.skip(7);
    const auto size = h.take<u32>();
    if (version != 1) throw ValueError("object header");
    Hdf5Array array{path, "", {}, 0, {}};
    bool has_shape = false, has_run = false;
    uint64_t stored = 0;
    std::vector<std::pair<uint64_t, uint64_t>> parts = {{at + 16, size}};
    for (size_t p = 0; p < parts.size(); ++p) {
      const std::string block = take(parts[p].first, parts[p].second);
      for (size_t i = 0; i < block.size();) {
        Fields m(block, i);
        const auto kind = m.take<u16>(), length = m.take<u16>();
        const auto flags = m.take<u8>();
        m.skip(3);
        i += 8 + size_t{length};
        if (flags & 2 || i > block.size()) throw ValueError("message");  // shared; cut off
        Fields data(block, i - length, i);
        if (kind == kMore) {
          const auto start = data.take<uint64_t>();
          parts.emplace_back(start, data.take<uint64_t>());
        } else if (kind == kSpace) {
          array.shape = shape_of(data);
          has_shape = true;
        } else if (kind == kType) {
          const auto type = array_types().find(without_zeros_behind(data.text(length)));
          array.dtype = type == array_types().end() ? "" : type->second;
        } else if (kind == kLayout) {
          has_run = data.take<u8>() == 3 && data.take<u8>() == 1;
          if (!has_run) throw ValueError("no run of numbers");
          array.start = data.take<uint64_t>();
          stored = data.take<uint64_t>();
        } else if (kind == kAttribute) {
          array.attributes.push_back(attribute_of(data));
        } else if (kind == kGroup) {
          const auto tree = data.take<uint64_t>();
          return group(path, tree, data.take<uint64_t>(), depth);
        } else if (!is_skipped(kind)) {
          throw ValueError("a message of another kind");
        }
      }
    }
    if (array.dtype.empty() || !has_shape || !has_run) throw ValueError("no run of numbers");
    const uint64_t wanted = bytes_of(array);
    if (wanted > stored ||
        (wanted && (array.start > file_.size() || wanted > file_.size() - array.start)))
      throw ValueError("an array larger than its place");
    if (!wanted) array.start = 0;
    runs_.emplace_back(array.start, wanted);
    found_.push_back(std::move(array));
  }

  uint64_t bytes_of(const Hdf5Array& array) const {
    auto size = static_cast<uint64_t>(array.dtype.back() - '0');
    bool is_empty = false;
    for (int64_t n : array.shape) {
      if (n < 0 || static_cast<uint64_t>(n) > file_.size() / size)
        throw ValueError("an array larger than the file");
      size *= static_cast<uint64_t>(std::max<int64_t>(n, 1));
      is_empty |= !n;
    }
    return is_empty ? 0 : size;
  }

  // Finds the arrays of a group.
  void group(const std::string& path, uint64_t tree, uint64_t heap, int depth) {
    const std::string head = take(heap, 32);
    Fields h(head);
    const bool known = h.text(4) == "HEAP" && h.take<u8>() == 0;
    h.skip(3);
    const auto size = h.take<uint64_t>();
    h.skip(8);
    const auto start = h.take<uint64_t>();
    if (!known || depth == deepest) throw ValueError("group");
    const std::string names = take(start, size);
    std::vector<uint64_t> leaves;
    tables(tree, depth, leaves);
    for (uint64_t leaf : leaves) {
      const std::string table = take(leaf, 8);
      Fields t(table);
      const bool is_table = t.text(4) == "SNOD" && t.take<u8>() == 1;
      t.skip(1);
      const auto n = t.take<u16>();
      if (!is_table) throw ValueError("symbol table");
      const std::string entries = take(leaf + 8, uint64_t{n} * 40);
      for (Fields e(entries); e.left(); e.skip(20)) {
        const auto at = e.take<uint64_t>(), object = e.take<uint64_t>();
        const auto link = e.take<u32>();
        const size_t stop = at < names.size() ? names.find('\0', at) : names.npos;
        if (stop == names.npos) throw ValueError("name");
        const std::string name = names.substr(at, stop - at);
        if (name.empty() || name.find('/') != name.npos || link == 2)  // a link to another name
          throw ValueError("link");
        const std::string here = path.empty() ? name : path + "/" + name;
        if (here.size() > left_) throw ValueError("more structure than file");
        left_ -= here.size();
        visit(here, object, depth + 1);
      }
    }
  }

  // Where the symbol tables of a group lie: the leaves of a tree.
  void tables(uint64_t at, int depth, std::vector<uint64_t>& leaves) {
    const std::string head = take(at, 24);
    Fields h(head);
    const bool known = h.text(4) == "TREE" && h.take<u8>() == 0;
    const auto level = h.take<u8>();
    const auto n = h.take<u16>();
    if (!known || depth == deepest) throw ValueError("tree");
    const std::string places = take(at + 24, uint64_t{n} * 16);
    for (Fields p(places); p.left();) {
      p.skip(8);  // a name, to search by
      const auto place = p.take<uint64_t>();
      if (level)
        tables(place, depth + 1, leaves);
      else
        leaves.push_back(place);
    }
  }

  static Shape shape_of(Fields data) {
    const auto version = data.take<u8>();
    const uint64_t rank = data.take<u8>();
    const auto flags = data.take<u8>();
    data.skip(5);
    // flags: with or without the largest sizes there may be
    if (version != 1 || flags & ~1 || rank > kMaxRank) throw ValueError("dataspace");
    Shape shape;
    for (uint64_t i = 0; i < rank; ++i) shape.push_back(data.take<int64_t>());
    return shape;
  }

  static std::pair<std::string, int64_t> attribute_of(Fields data) {
    const auto version = data.take<u8>();
    data.skip(1);
    const u16 sizes[] = {data.take<u16>(), data.take<u16>(), data.take<u16>()};
    std::string parts[3];
    for (int i = 0; i < 3; ++i) {
      parts[i] = data.text(sizes[i]);
      data.skip((8 - sizes[i] % 8) % 8);
    }
    const auto type = attribute_types().find(without_zeros_behind(parts[1]));
    if (version != 1 || type == attribute_types().end() ||
        parts[2] != std::string("\1\0\0\0\0\0\0\0", 8))  // one number
      throw ValueError("attribute");
    const std::string& dtype = type->second;
    const auto size = static_cast<size_t>(dtype.back() - '0');
    return {without_zeros_behind(parts[0]), integer_of(data.text(size), dtype[1] == 'i')};
  }

  FileBytes file_;
  uint64_t left_;
  std::vector<Hdf5Array> found_;
  std::vector<std::pair<uint64_t, uint64_t>> runs_;  // begin and length of every array
};

}  // namespace

std::vector<Hdf5Array> hdf5_arrays(const Bytes& file) { return Reader(file).arrays(); }

}  // namespace nnl

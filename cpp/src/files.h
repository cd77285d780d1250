// SPDX-License-Identifier: Apache-2.0
// Whole files: mapped to be read, and written so that nobody sees half of one.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace nnl {

// A file, mapped copy-on-write: what is written there stays in this process.
class MappedFile {
 public:
  // ValueError: there is no such file, or it is empty. The text names it.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }
  std::string_view bytes() const { return {data_, size_}; }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

// A file under a temporary name beside its own, which it gets when it is complete. Links are
// followed; without finish() nothing changes.
class NewFile {
 public:
  explicit NewFile(const std::string& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const void* data, size_t size);
  void write(std::string_view data) { write(data.data(), data.size()); }
  size_t size() const { return size_; }  // so far
  void finish();

 private:
  [[noreturn]] void fail(const std::string& what) const;
  void discard();

  std::string path_, target_, temporary_;
  int file_ = -1;
  size_t size_ = 0;
};

}  // namespace nnl

// SPDX-License-Identifier: Apache-2.0
#include "files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "nnl/errors.h"

namespace nnl {

MappedFile::MappedFile(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw ValueError(path + ": " + std::strerror(errno));
  struct stat info{};
  if (fstat(file, &info) == 0 && S_ISREG(info.st_mode)) size_ = static_cast<size_t>(info.st_size);
  void* memory = MAP_FAILED;
  if (size_) memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  close(file);
  if (!size_) throw ValueError(path + ": the file is empty, or no file");
  if (memory == MAP_FAILED) throw ValueError(path + ": it cannot be mapped");
  data_ = static_cast<char*>(memory);
}

MappedFile::~MappedFile() { munmap(data_, size_); }

NewFile::NewFile(const std::string& path) : path_(path), target_(path) {
  if (char* real = realpath(path.c_str(), nullptr)) {
    target_ = real;
    std::free(real);
  }
  struct stat old{};
  const bool exists = stat(target_.c_str(), &old) == 0;
  if (exists && !S_ISREG(old.st_mode))
    throw ValueError(path + " is no file: it cannot be replaced");
  static std::atomic<int> count{0};
  temporary_ = target_ + "." + std::to_string(getpid()) + "." + std::to_string(++count) + ".tmp";
  file_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file_ >= 0 && exists && fchmod(file_, old.st_mode & 07777)) discard();
  if (file_ < 0) fail("cannot be written");
}

NewFile::~NewFile() {
  if (file_ >= 0) discard();
}

void NewFile::discard() {
  const int error = errno;
  close(std::exchange(file_, -1));
  unlink(temporary_.c_str());
  errno = error;
}

void NewFile::fail(const std::string& what) const {
  throw ValueError(path_ + ": " + what + ": " + std::strerror(errno));
}

void NewFile::write(const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  size_ += size;
  while (size) {
    const ssize_t n = ::write(file_, at, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot be written");
    at += n;
    size -= static_cast<size_t>(n);
  }
}

void NewFile::finish() {
  const int file = std::exchange(file_, -1);
  if (close(file) || std::rename(temporary_.c_str(), target_.c_str())) {
    const int error = errno;
    unlink(temporary_.c_str());
    errno = error;
    fail("cannot be written");
  }
}

}  // namespace nnl

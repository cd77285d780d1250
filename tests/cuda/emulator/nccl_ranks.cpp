// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "nccl.h"
#include "ptx.h"
#include "ptx_rounding.h"

namespace emu {
namespace {

constexpr int kMostRanks = 16;
constexpr std::size_t kSlot = 1 << 18, kMail = 1 << 14;
constexpr unsigned kPolite = 3;                      // questions
constexpr auto kPatience = std::chrono::minutes(5);  // NCCL has more of it

enum Reduction { kSum, kProduct, kMaximum, kMinimum, kAverage };

// Waits until something holds, with naps.
template <class F>
void wait_until(F holds, const std::string& what) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  for (int looks = 0; !holds(); ++looks) {
    if (looks < 100)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (std::chrono::steady_clock::now() > end) throw Fault("NCCL waited too long in " + what);
  }
}

template <class T>
T combined(T a, T b, int operation) {
  switch (operation) {
    case kProduct:
      return T(a * b);
    case kMaximum:
      return std::max(a, b);
    case kMinimum:
      return std::min(a, b);
    default:
      return T(a + b);
  }
}

// Numbers of 16 bits are rounded after each step.
Half combined(Half a, Half b, int operation) {
  return half_of(combined(to_float(a), to_float(b), operation));
}
Brain combined(Brain a, Brain b, int operation) {
  return brain_of(combined(to_float(a), to_float(b), operation));
}
template <class T>
T part(T sum, int of) {
  return T(sum / T(of));
}
Half part(Half sum, int of) { return half_of(to_float(sum) / float(of)); }
Brain part(Brain sum, int of) { return brain_of(to_float(sum) / float(of)); }

template <class T>
void reduce(const std::vector<const std::byte*>& from, std::byte* to, std::size_t n, int how) {
  for (std::size_t i = 0; i < n; ++i) {
    T sum, next;
    std::memcpy(&sum, from[0] + i * sizeof(T), sizeof(T));
    for (std::size_t k = 1; k < from.size(); ++k) {
      std::memcpy(&next, from[k] + i * sizeof(T), sizeof(T));
      sum = combined(sum, next, how);
    }
    if (how == kAverage) sum = part(sum, int(from.size()));
    std::memcpy(to + i * sizeof(T), &sum, sizeof(T));
  }
}

using Reduce = void (*)(const std::vector<const std::byte*>&, std::byte*, std::size_t, int);
struct Numbers {
  const char* name;
  std::size_t bytes;
  Reduce reduce;
};
constexpr Numbers kTypes[] = {
    {"int8", 1, reduce<std::int8_t>},   {"uint8", 1, reduce<std::uint8_t>},
    {"int32", 4, reduce<std::int32_t>}, {"uint32", 4, reduce<std::uint32_t>},
    {"int64", 8, reduce<std::int64_t>}, {"uint64", 8, reduce<std::uint64_t>},
    {"float16", 2, reduce<Half>},       {"float32", 4, reduce<float>},
    {"float64", 8, reduce<double>},     {"bfloat16", 2, reduce<Brain>},
};

}  // namespace

std::size_t bytes_of_type(int type) {
  return type >= 0 && type < int(std::size(kTypes)) ? kTypes[type].bytes : 0;
}

std::string Call::text() const {
  constexpr const char* names[] = {"AllReduce", "Reduce", "Broadcast", "AllGather",
                                   "ReduceScatter"};
  return std::string(names[int(kind)]) + "(" + std::to_string(count) + " " + kTypes[type].name +
         ", operation " + std::to_string(operation) + ", root " + std::to_string(root) + ")";
}

// In memory that is zero at first.
struct Ranks::File {
  struct Rank {
    std::atomic<int> there;
    int size, device;
    Call call;
  };
  std::atomic<int> arrived;
  std::atomic<unsigned> turn;
  Rank ranks[kMostRanks];
};

struct Ranks::Mailbox {
  std::atomic<bool> full;
  std::size_t bytes;
  std::byte data[kMail];
};

std::size_t Ranks::bytes() const {
  return sizeof(File) + std::size_t(size) * kSlot + std::size_t(size * size) * sizeof(Mailbox);
}

std::byte* Ranks::slot(int of) const {
  return reinterpret_cast<std::byte*>(file_ + 1) + std::size_t(of) * kSlot;
}

Ranks::Mailbox& Ranks::mailbox(int from, int to) const {
  return reinterpret_cast<Mailbox*>(slot(size))[from * size + to];
}

Ranks::Ranks(const std::string& file, int n, int place)
    : size(n), rank(place), path_("/dev/shm/" + file) {
  if (size > kMostRanks) throw Fault("the emulated NCCL has 16 ranks at most");
  const int opened = open(path_.c_str(), O_RDWR | O_CREAT, 0600);
  void* at = MAP_FAILED;
  if (opened >= 0 && ftruncate(opened, off_t(bytes())) == 0)
    at = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
  if (opened >= 0) close(opened);
  if (at == MAP_FAILED) throw Fault("NCCL cannot make " + path_);
  file_ = static_cast<File*>(at);
}

Ranks::~Ranks() { munmap(file_, bytes()); }

bool Ranks::meet(int device) {
  File::Rank& mine = file_->ranks[rank];
  mine.size = size;
  mine.device = device;
  mine.there = 1;
  for (int k = 0; k < size; ++k)
    wait_until([&] { return file_->ranks[k].there != 0; }, "CommInitRank");
  bool agree = true;
  for (int k = 0; k < size; ++k)
    agree &= file_->ranks[k].size == size && (k == rank || file_->ranks[k].device != device);
  unlink(path_.c_str());  // all have it
  return agree;
}

void Ranks::barrier(const std::string& what) {
  const unsigned turn = file_->turn;
  if (++file_->arrived == size) {
    file_->arrived = 0;
    ++file_->turn;
    return;
  }
  wait_until([&] { return file_->turn != turn; }, what);
}

void Ranks::run(const std::vector<Operation>& operations) {
  here_ = true;
  std::vector<Operation> transfers;
  for (const Operation& o : operations) o.peer < 0 ? collective(o) : transfers.push_back(o);
  transfer(std::move(transfers));
  here_ = false;
}

bool Ranks::others_wait() const {
  for (int k = 0; k < size; ++k)
    if (k != rank && mailbox(k, rank).full) return true;
  return file_->arrived > 0;
}

bool Ranks::is_missed() {
  missed_ = !here_ && others_wait() ? missed_ + 1 : 0;
  return missed_ > kPolite;
}

void Ranks::collective(const Operation& o) {
  const Call& call = o.call;
  const Numbers& type = kTypes[call.type];
  const bool apart = call.kind == Collective::reduce_scatter;  // a piece for each rank
  const std::size_t pieces = apart ? std::size_t(size) : 1;
  const std::size_t room = kSlot / type.bytes / pieces;
  const bool reduces = apart || call.kind == Collective::all_reduce ||
                       (call.kind == Collective::reduce && rank == call.root);
  file_->ranks[rank].call = call;
  for (std::size_t start = 0; start < call.count; start += room) {
    const std::size_t n = std::min(room, call.count - start) * type.bytes;
    const std::size_t at = start * type.bytes, step = call.count * type.bytes;
    if (call.kind != Collective::broadcast || rank == call.root)
      for (std::size_t p = 0; p < pieces; ++p)
        std::memcpy(slot(rank) + p * room * type.bytes, o.from + p * step + at, n);
    barrier(call.text());
    for (int k = 0; k < size; ++k)
      if (const Call& other = file_->ranks[k].call; other != call)
        throw Fault("NCCL: rank " + std::to_string(rank) + " calls " + call.text() + ", but rank " +
                    std::to_string(k) + " " + other.text());
    std::vector<const std::byte*> from;
    for (int k = 0; k < size; ++k)
      from.push_back(slot(k) + (apart ? std::size_t(rank) * room * type.bytes : 0));
    if (reduces)
      type.reduce(from, o.to + at, n / type.bytes, call.operation);
    else if (call.kind == Collective::broadcast)
      std::memcpy(o.to + at, slot(call.root), n);
    else if (call.kind == Collective::all_gather)
      for (int k = 0; k < size; ++k) std::memcpy(o.to + std::size_t(k) * step + at, from[k], n);
    barrier(call.text());
  }
}

void Ranks::transfer(std::vector<Operation> left) {
  const auto size_of = [](const Operation& o) { return o.call.count * kTypes[o.call.type].bytes; };
  for (Operation& o : left) o.call = {o.call.kind, 1, 0, 0, size_of(o)};  // in bytes
  const auto progress = [&] {
    std::vector<bool> seen(std::size_t(2 * size));
    for (Operation& o : left) {
      const bool sends = o.from != nullptr;
      const std::size_t way = std::size_t(2 * o.peer + sends);
      if (seen[way]) continue;  // behind another one to the same rank
      seen[way] = true;
      Mailbox& m = sends ? mailbox(rank, o.peer) : mailbox(o.peer, rank);
      if (m.full == sends) continue;
      const std::size_t n = sends ? std::min<std::size_t>(o.call.count, kMail) : m.bytes;
      if (n > o.call.count) throw Fault("NCCL: Recv is shorter than Send");
      std::memcpy(sends ? m.data : o.to, sends ? o.from : m.data, n);
      m.bytes = n;
      m.full = sends;
      if (sends)
        o.from += n;
      else
        o.to += n;
      o.call.count -= n;
    }
    std::erase_if(left, [](const Operation& o) { return o.call.count == 0; });
    return left.empty();
  };
  wait_until(progress, "Send and Recv");
}

}  // namespace emu

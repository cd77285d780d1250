// SPDX-License-Identifier: Apache-2.0
// What ranks of NCCL share: a file in memory, and how they exchange data through it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace emu {

enum class Collective { all_reduce, reduce, broadcast, all_gather, reduce_scatter };

// What all ranks must call alike.
struct Call {
  Collective kind;
  int type, operation, root;
  std::uint64_t count;
  bool operator==(const Call&) const = default;
  std::string text() const;
};

// A call with the addresses of this rank, or one half of a transfer between two.
struct Operation {
  Call call;
  const std::byte* from;
  std::byte* to;
  int peer = -1;  // whom something is sent to or received from
};

std::size_t bytes_of_type(int type);  // 0 if there is no such type

// A rank's end of the file.
class Ranks {
 public:
  // Throws Fault if the file cannot be made.
  Ranks(const std::string& file, int size, int rank);
  ~Ranks();
  Ranks(const Ranks&) = delete;

  // Wait for all; whether they agree on the number of ranks, and each has a device of its own.
  bool meet(int device);
  // Do what is asked one after the other; what is sent and received, all at once.
  void run(const std::vector<Operation>& operations);
  // Whether another rank waits for this one, which has not come for a while; asked now and then.
  bool is_missed();

  const int size, rank;

 private:
  struct File;
  struct Mailbox;
  std::byte* slot(int of) const;
  Mailbox& mailbox(int from, int to) const;
  void barrier(const std::string& what);
  void collective(const Operation& o);
  void transfer(std::vector<Operation> operations);
  bool others_wait() const;
  std::size_t bytes() const;

  std::string path_;
  File* file_;
  std::atomic<bool> here_ = false;  // whether it is in run()
  unsigned missed_ = 0;             // how often others waited in a row
};

}  // namespace emu

// SPDX-License-Identifier: Apache-2.0
// NCCL between processes of one machine, each with an emulated device.
//
// Calls become work of streams, which waits for the other ranks. Where one waits for long, the
// others' devices go on without their programs asking for it, as devices do. As nothing else runs
// on a process's devices meanwhile, programs that start calls of several communicators in different
// orders on different ranks hang; NCCL forbids those. Ranks that call different things are told so
// here, where NCCL would hang. One process has one rank of a communicator.
#include "nccl.h"

#include <sys/random.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "state.h"

namespace emu {
namespace {

enum Result {
  kOk = 0,
  kCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5
};
constexpr int kOperations = 5;  // sum, prod, max, min, avg

struct UniqueId {
  char text[128];
};

struct Comm {
  std::unique_ptr<Ranks> ranks;
  int device;
};

struct Queued {
  std::shared_ptr<Comm> comm;
  void* stream;
  Operation operation;
};

std::mutex mutex;
auto& comms = *new std::map<Comm*, std::shared_ptr<Comm>>;
thread_local int depth = 0;  // of groups
thread_local std::vector<Queued> group;

std::shared_ptr<Comm> find(Comm* handle) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = comms.find(handle);
  return found == comms.end() ? nullptr : found->second;
}

// Bytes that an operation reads and writes on this rank.
std::pair<std::size_t, std::size_t> spans(const Operation& o, int rank, int size) {
  const std::size_t one = o.call.count * bytes_of_type(o.call.type), all = one * std::size_t(size);
  const bool is_root = rank == o.call.root;
  if (o.peer >= 0) return {o.from ? one : 0, o.to ? one : 0};
  switch (o.call.kind) {
    case Collective::reduce:
      return {one, is_root ? one : 0};
    case Collective::broadcast:
      return {is_root ? one : 0, one};
    case Collective::all_gather:
      return {one, all};
    case Collective::reduce_scatter:
      return {all, one};
    default:
      return {one, one};
  }
}

void check(const Memory& memory, const void* at, std::size_t bytes, const Operation& o) {
  if (bytes != 0 && !memory.holds(reinterpret_cast<std::uint64_t>(at), bytes))
    throw Fault("NCCL's " + o.call.text() + " uses " + std::to_string(bytes) + " bytes at " +
                std::to_string(reinterpret_cast<std::uint64_t>(at)) +
                ", which are not memory of the device");
}

// Queue operations of one communicator on one stream as one piece of work.
int launch(const std::shared_ptr<Comm>& comm, void* stream, std::vector<Operation> operations) {
  const int before = current_device;
  current_device = comm->device;
  const int error = call([&](State& s, Lock& lock) -> int {
    Stream* on = s.stream(stream);
    if (on == nullptr || on->device != comm->device) return kInvalidResourceHandle;
    return s.enqueue(lock, *on, [&s, comm, operations] {
      const Memory& memory = s.devices[comm->device]->reach;
      for (const Operation& o : operations) {
        const auto [reads, writes] = spans(o, comm->ranks->rank, comm->ranks->size);
        check(memory, o.from, reads, o);
        check(memory, o.to, writes, o);
      }
      comm->ranks->run(operations);
    });
  });
  current_device = before;
  return error == kSuccess ? kOk : kCudaError;
}

int launch_group() {
  const std::vector<Queued> queued = std::move(group);
  group.clear();
  std::vector<bool> done(queued.size());
  for (std::size_t i = 0; i < queued.size(); ++i) {
    if (done[i]) continue;
    std::vector<Operation> together;
    for (std::size_t j = i; j < queued.size(); ++j)
      if (queued[j].comm == queued[i].comm && queued[j].stream == queued[i].stream) {
        together.push_back(queued[j].operation);
        done[j] = true;
      }
    if (const int error = launch(queued[i].comm, queued[i].stream, std::move(together)))
      return error;
  }
  return kOk;
}

int queue(Comm* handle, void* stream, const Operation& o) {
  const auto comm = find(handle);
  if (!comm) return kInvalidArgument;
  const int size = comm->ranks->size;
  if (bytes_of_type(o.call.type) == 0 || o.call.operation < 0 || o.call.operation >= kOperations ||
      o.call.root < 0 || o.call.root >= size || o.peer >= size)
    return kInvalidArgument;
  if (o.call.count == 0) return kOk;
  const auto [reads, writes] = spans(o, comm->ranks->rank, size);
  if ((reads != 0 && o.from == nullptr) || (writes != 0 && o.to == nullptr))
    return kInvalidArgument;
  if (depth == 0) return launch(comm, stream, {o});
  group.push_back({comm, stream, o});
  return kOk;
}

int collective(Comm* comm, void* stream, Collective kind, const void* from, void* to,
               std::size_t count, int type, int operation, int root) {
  return queue(comm, stream,
               {{kind, type, operation, root, count},
                static_cast<const std::byte*>(from),
                static_cast<std::byte*>(to)});
}

// Lets devices go on whose ranks others wait for.
void drive() {
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
    std::vector<std::shared_ptr<Comm>> all;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      for (const auto& [handle, comm] : comms) all.push_back(comm);
    }
    for (const auto& comm : all) {
      if (!comm->ranks->is_missed()) continue;
      State& s = State::get();
      Lock lock(s.schedule.mutex());
      s.schedule.finish_all(lock, comm->device);
    }
  }
}

int forget(Comm* handle) {
  const std::lock_guard<std::mutex> lock(mutex);
  return comms.erase(handle) ? kOk : kInvalidArgument;  // what is queued keeps it
}

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" {

const char* ncclGetErrorString(int result) {
  constexpr const char* texts[] = {
      "no error",       "unhandled cuda error", "unhandled system error",
      "internal error", "invalid argument",     "invalid usage",
      "remote error"};
  return result >= 0 && result < int(std::size(texts)) ? texts[result] : "unknown result code";
}

int ncclGetVersion(int* version) {
  *version = 22707;
  return kOk;
}

int ncclGetUniqueId(UniqueId* id) {
  std::uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) return kSystemError;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->text, sizeof id->text, "emulated-nccl-%016llx",
                static_cast<unsigned long long>(number));
  return kOk;
}

int ncclCommInitRankConfig(Comm** made, int size, UniqueId id, int rank, void*) {
  if (size < 1 || rank < 0 || rank >= size || id.text[sizeof id.text - 1] != 0)
    return kInvalidArgument;
  try {
    auto comm = std::make_shared<Comm>();
    comm->device = current_device;
    comm->ranks = std::make_unique<Ranks>(id.text, size, rank);
    if (!comm->ranks->meet(current_device)) return kInvalidUsage;
    *made = comm.get();
    static std::once_flag driven;
    std::call_once(driven, [] { std::thread(drive).detach(); });
    const std::lock_guard<std::mutex> lock(mutex);
    comms[comm.get()] = std::move(comm);
    return kOk;
  } catch (const Fault& e) {
    std::fprintf(stderr, "emulated GPU %d: %s\n", current_device, e.what());
    return kSystemError;
  }
}

int ncclCommInitRank(Comm** made, int size, UniqueId id, int rank) {
  return ncclCommInitRankConfig(made, size, id, rank, nullptr);
}

int ncclCommDestroy(Comm* comm) { return forget(comm); }
int ncclCommAbort(Comm* comm) { return forget(comm); }

int ncclCommGetAsyncError(Comm* comm, int* error) {
  *error = kOk;
  return find(comm) ? kOk : kInvalidArgument;
}

int ncclCommCount(Comm* handle, int* count) {
  const auto comm = find(handle);
  if (comm) *count = comm->ranks->size;
  return comm ? kOk : kInvalidArgument;
}

int ncclCommUserRank(Comm* handle, int* rank) {
  const auto comm = find(handle);
  if (comm) *rank = comm->ranks->rank;
  return comm ? kOk : kInvalidArgument;
}

int ncclCommCuDevice(Comm* handle, int* device) {
  const auto comm = find(handle);
  if (comm) *device = comm->device;
  return comm ? kOk : kInvalidArgument;
}

int ncclAllReduce(const void* from, void* to, std::size_t count, int type, int operation,
                  Comm* comm, void* stream) {
  return collective(comm, stream, Collective::all_reduce, from, to, count, type, operation, 0);
}

int ncclReduce(const void* from, void* to, std::size_t count, int type, int operation, int root,
               Comm* comm, void* stream) {
  return collective(comm, stream, Collective::reduce, from, to, count, type, operation, root);
}

int ncclBroadcast(const void* from, void* to, std::size_t count, int type, int root, Comm* comm,
                  void* stream) {
  return collective(comm, stream, Collective::broadcast, from, to, count, type, 0, root);
}

int ncclBcast(void* data, std::size_t count, int type, int root, Comm* comm, void* stream) {
  return ncclBroadcast(data, data, count, type, root, comm, stream);
}

int ncclReduceScatter(const void* from, void* to, std::size_t count, int type, int operation,
                      Comm* comm, void* stream) {
  return collective(comm, stream, Collective::reduce_scatter, from, to, count, type, operation, 0);
}

int ncclAllGather(const void* from, void* to, std::size_t count, int type, Comm* comm,
                  void* stream) {
  return collective(comm, stream, Collective::all_gather, from, to, count, type, 0, 0);
}

int ncclSend(const void* from, std::size_t count, int type, int peer, Comm* comm, void* stream) {
  if (peer < 0) return kInvalidArgument;
  return queue(comm, stream,
               {{Collective::broadcast, type, 0, 0, count},
                static_cast<const std::byte*>(from),
                nullptr,
                peer});
}

int ncclRecv(void* to, std::size_t count, int type, int peer, Comm* comm, void* stream) {
  if (peer < 0) return kInvalidArgument;
  return queue(
      comm, stream,
      {{Collective::broadcast, type, 0, 0, count}, nullptr, static_cast<std::byte*>(to), peer});
}

int ncclGroupStart() {
  ++depth;
  return kOk;
}

int ncclGroupEnd() {
  if (depth == 0) return kInvalidUsage;
  return --depth == 0 ? launch_group() : kOk;
}

}  // extern "C"

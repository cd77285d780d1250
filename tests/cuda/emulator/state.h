// SPDX-License-Identifier: Apache-2.0
// Everything that the emulated driver and runtime know, and how their functions begin and end.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "memory.h"
#include "schedule.h"

namespace emu {

// Errors of the driver and of the runtime have the same numbers.
enum Error {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidConfiguration = 9,
  kInvalidDevice = 101,
  kInvalidPtx = 218,
  kInvalidResourceHandle = 400,
  kIllegalState = 401,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchOutOfResources = 701,
  kPeerAccessAlreadyEnabled = 704,
  kPeerAccessNotEnabled = 705,
  kNotPermitted = 800,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureMerge = 902,
  kCaptureUnmatched = 903,
  kCaptureUnjoined = 904,
  kCaptureIsolation = 905,
  kCaptureImplicit = 906,
  kCapturedEvent = 907,
  kCaptureWrongThread = 908,
  kUnknown = 999,
};

struct Device {
  int number;
  int broken = kSuccess;  // the error that all calls give from now on
  std::set<int> peers;    // devices whose memory it may touch
  Stream legacy;
  std::map<std::uint64_t, Stream> by_thread;  // default streams of threads
  Reachable reach;
};

using Lock = Schedule::Lock;

class State {
 public:
  static State& get();

  Addresses memory;
  Schedule schedule;
  std::vector<std::unique_ptr<Device>> devices;
  std::map<Stream*, std::unique_ptr<Stream>> streams;
  std::map<Event*, std::unique_ptr<Event>> events;
  std::set<std::shared_ptr<Capture>> captures;
  std::map<Graph*, std::shared_ptr<Graph>> graphs, executables;
  std::vector<std::uint64_t> freed;  // while work ran, to be released afterwards
  std::string fault;                 // the text of the last one

  Device& device();                    // of the current thread
  Stream* stream(const void* handle);  // nullptr for one that is not there
  Event* event(const void* handle);    // likewise
  std::vector<Stream*> all_streams(int device);

  // Queue work on a stream, or record it.
  int enqueue(Lock& lock, Stream& stream, Work work);
  // What a thread waits for at a stream; an error where it may not.
  int synchronize(Lock& lock, Stream& stream);
  int synchronize_device(Lock& lock, int device);
  // Refuse what a recording forbids: calls that might wait, and the use of the legacy stream.
  int unsafe();
  int implicit(int device);
  bool would_be_implicit(int device) const;
  int invalidate(Capture& capture, int error);
  void end(const std::shared_ptr<Capture>& capture);
  void failed(int device, const std::string& what);
  void release_freed();

 private:
  State();
};

std::uint64_t thread_number();
extern thread_local int current_device;
extern thread_local int last_error;

int remember(int error);  // for cudaGetLastError

// Call f(State&, Lock&) -> error, unless the device is broken.
template <class F>
int call(F f) {
  State& s = State::get();
  Lock lock(s.schedule.mutex());
  if (s.device().broken != kSuccess) return remember(s.device().broken);
  try {
    return remember(f(s, lock));
  } catch (const Fault& e) {
    s.failed(current_device, e.what());
    return remember(s.device().broken);
  }
}

}  // namespace emu

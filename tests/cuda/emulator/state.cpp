// SPDX-License-Identifier: Apache-2.0
#include "state.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace emu {
namespace {

std::string setting(const char* name, const char* otherwise) {
  const char* found = std::getenv(name);
  return found != nullptr ? found : otherwise;
}

// Whether a recording has streams that keep their order with the legacy one of a device.
bool is_ordered(const Capture& capture, int device) {
  return std::ranges::any_of(
      capture.streams, [device](const Stream* s) { return s->blocking && s->device == device; });
}

int device_count() { return std::stoi(setting("EMULATOR_DEVICES", "1")); }

}  // namespace

thread_local int current_device = 0;
thread_local int last_error = kSuccess;

std::uint64_t thread_number() {
  static std::atomic<std::uint64_t> threads = 0;
  static thread_local const std::uint64_t mine = ++threads;
  return mine;
}

int remember(int error) {
  if (error != kSuccess && error != kNotReady) last_error = error;
  return error;
}

State& State::get() {
  static State& state = *new State;  // destructors of other libraries may still call
  return state;
}

State::State()
    : memory(device_count(), setting("EMULATOR_PROTECT", "1") == "1"),
      schedule(setting("EMULATOR_ORDER", "late"), memory) {
  for (int d = 0; d < device_count(); ++d) {
    auto made = std::unique_ptr<Device>(
        new Device{.number = d, .peers = {}, .legacy = {}, .by_thread = {}, .reach = {memory, d}});
    made->legacy.device = d;
    made->legacy.legacy = true;
    devices.push_back(std::move(made));
  }
  for (auto& d : devices) d->reach.others = &d->peers;
  schedule.failed = [this](int d, const std::string& what) { failed(d, what); };
  schedule.is_broken = [this](int d) { return devices[d]->broken != kSuccess; };
  schedule.afterwards = [this] { release_freed(); };
}

void State::failed(int device, const std::string& what) {
  fault = what;
  devices[device]->broken = kIllegalAddress;
  std::fprintf(stderr, "emulated GPU %d: %s\n", device, what.c_str());
}

void State::release_freed() {
  std::vector<std::uint64_t> now;
  now.swap(freed);
  try {
    for (const std::uint64_t address : now) memory.release(address);
  } catch (const Fault& e) {
    failed(current_device, e.what());
  }
}

Device& State::device() { return *devices[current_device]; }

Stream* State::stream(const void* handle) {
  const auto number = reinterpret_cast<std::uint64_t>(handle);
  if (number <= 1) return &device().legacy;
  if (number == 2) {
    Stream& mine = device().by_thread[thread_number()];
    mine.device = current_device;
    return &mine;
  }
  const auto found = streams.find(reinterpret_cast<Stream*>(number));
  return found == streams.end() ? nullptr : found->first;
}

Event* State::event(const void* handle) {
  const auto found = events.find(reinterpret_cast<Event*>(reinterpret_cast<std::uint64_t>(handle)));
  return found == events.end() ? nullptr : found->first;
}

std::vector<Stream*> State::all_streams(int device) {
  std::vector<Stream*> found;
  for (const auto& [s, owner] : streams)
    if (s->device == device) found.push_back(s);
  for (auto& [thread, s] : devices[device]->by_thread) found.push_back(&s);
  return found;
}

int State::enqueue(Lock& lock, Stream& stream, Work work) {
  if (Schedule::inside()) return kNotPermitted;
  if (devices[stream.device]->broken != kSuccess) return devices[stream.device]->broken;
  if (stream.capture) {
    if (!stream.capture->valid) return kCaptureInvalidated;
    auto& steps = stream.capture->graph->steps;
    steps.push_back({std::move(work), stream.tail});
    stream.tail = {steps.size() - 1};
    return kSuccess;
  }
  std::vector<Task> after = {stream.last};
  if (stream.legacy) {
    if (const int error = implicit(stream.device)) return error;
    for (const Stream* s : all_streams(stream.device))
      if (s->blocking) after.push_back(s->last);
  } else if (stream.blocking) {
    after.push_back(devices[stream.device]->legacy.last);
  }
  stream.last = schedule.add(lock, stream.device, std::move(work), std::move(after));
  return kSuccess;
}

int State::synchronize(Lock& lock, Stream& stream) {
  if (Schedule::inside()) return kNotPermitted;
  if (stream.capture) return invalidate(*stream.capture, kCaptureUnsupported);
  std::vector<Task> tasks = {stream.last};
  if (stream.legacy) {
    if (const int error = implicit(stream.device)) return error;
    for (const Stream* s : all_streams(stream.device))
      if (s->blocking) tasks.push_back(s->last);
  }
  schedule.finish(lock, tasks);
  return devices[stream.device]->broken;
}

int State::synchronize_device(Lock& lock, int device) {
  if (Schedule::inside()) return kNotPermitted;
  int error = kSuccess;
  for (const auto& c : captures)
    if (c->origin->device == device) error = invalidate(*c, kCaptureUnsupported);
  if (error != kSuccess) return error;
  schedule.finish_all(lock, device);
  memory.open();
  try {
    memory.check_surroundings();
  } catch (const Fault& e) {
    failed(device, e.what());
  }
  memory.close();
  return devices[device]->broken;
}

int State::unsafe() {
  for (const auto& c : captures)
    if (c->mode == Mode::global || (c->mode == Mode::thread_local_ && c->thread == thread_number()))
      return invalidate(*c, kCaptureUnsupported);
  return kSuccess;
}

bool State::would_be_implicit(int device) const {
  return std::ranges::any_of(captures, [device](const auto& c) { return is_ordered(*c, device); });
}

int State::implicit(int device) {
  int error = kSuccess;
  for (const auto& c : captures)
    if (is_ordered(*c, device)) error = invalidate(*c, kCaptureImplicit);
  return error;
}

int State::invalidate(Capture& capture, int error) {
  if (!capture.valid) return kCaptureInvalidated;
  capture.valid = false;
  return error;
}

void State::end(const std::shared_ptr<Capture>& capture) {
  for (Stream* s : capture->streams) {
    s->capture = nullptr;
    s->tail.clear();
  }
  captures.erase(capture);
}

}  // namespace emu

// SPDX-License-Identifier: Apache-2.0
// Streams, events and recorded graphs, as CUDA's runtime has them.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "state.h"

namespace emu {
namespace {

template <class F>
cudaError_t on_stream(const void* handle, F f) {
  return cudaError_t(call([&](State& s, Lock& lock) -> int {
    Stream* stream = s.stream(handle);
    return stream == nullptr ? kInvalidResourceHandle : f(s, lock, *stream);
  }));
}

template <class F>
cudaError_t on_event(const void* handle, F f) {
  return cudaError_t(call([&](State& s, Lock& lock) -> int {
    Event* event = s.event(handle);
    return event == nullptr ? kInvalidResourceHandle : f(s, lock, *event);
  }));
}

int make_stream(cudaStream_t* made, unsigned flags, int priority) {
  return call([&](State& s, Lock&) {
    auto stream = std::make_unique<Stream>();
    stream->device = current_device;
    stream->flags = flags;
    stream->priority = priority;
    stream->blocking = (flags & cudaStreamNonBlocking) == 0;
    *made = reinterpret_cast<cudaStream_t>(stream.get());
    s.streams[stream.get()] = std::move(stream);
    return kSuccess;
  });
}

// Let a recording fork to another stream, or join it again.
int wait_for_recorded(State& s, Stream& stream, const Event& event) {
  if (!stream.capture) {
    if (!event.capture->valid) return kCaptureInvalidated;
    if (stream.legacy) return s.invalidate(*event.capture, kCaptureUnsupported);
    stream.capture = event.capture;
    event.capture->streams.insert(&stream);
  } else if (stream.capture != event.capture) {
    s.invalidate(*event.capture, kCaptureMerge);
    return s.invalidate(*stream.capture, kCaptureMerge);
  }
  for (const std::size_t i : event.tail)
    if (std::ranges::find(stream.tail, i) == stream.tail.end()) stream.tail.push_back(i);
  return kSuccess;
}

int record(State& s, Lock& lock, Event& event, Stream& stream) {
  if (event.device != stream.device) return kInvalidResourceHandle;
  if (stream.capture) {
    if (!stream.capture->valid) return kCaptureInvalidated;
    event.capture = stream.capture;
    event.tail = stream.tail;
    event.mark = nullptr;
    return kSuccess;
  }
  if (const int error = s.enqueue(lock, stream, {})) return error;
  event.capture = nullptr;
  event.mark = stream.last;
  event.asked = 0;
  return kSuccess;
}

int wait(State& s, Lock& lock, Stream& stream, Event& event) {
  if (event.capture) return wait_for_recorded(s, stream, event);
  if (!event.mark) return kSuccess;
  if (stream.capture) return s.invalidate(*stream.capture, kCaptureIsolation);
  std::vector<Task> after = {stream.last, event.mark};
  stream.last = s.schedule.add(lock, stream.device, {}, std::move(after));
  return kSuccess;
}

// Whether all that other streams have recorded comes before what the origin's next step waits for.
bool joined(const Capture& capture) {
  const auto& steps = capture.graph->steps;
  std::vector<bool> before(steps.size());
  for (const std::size_t i : capture.origin->tail) before[i] = true;
  for (std::size_t i = steps.size(); i-- > 0;)
    if (before[i])
      for (const std::size_t a : steps[i].after) before[a] = true;
  return std::ranges::all_of(capture.streams, [&](const Stream* s) {
    return s == capture.origin ||
           std::ranges::all_of(s->tail, [&](std::size_t i) { return before[i]; });
  });
}

int finish_capture(State& s, Stream& stream, cudaGraph_t* made) {
  *made = nullptr;
  const std::shared_ptr<Capture> capture = stream.capture;
  if (!capture) return kIllegalState;
  if (capture->origin != &stream) return s.invalidate(*capture, kCaptureUnmatched);
  if (capture->mode != Mode::relaxed && capture->thread != thread_number())
    return s.invalidate(*capture, kCaptureWrongThread);
  const bool good = joined(*capture);
  s.end(capture);
  if (!capture->valid) return kCaptureInvalidated;
  if (!good) return kCaptureUnjoined;
  s.graphs[capture->graph.get()] = capture->graph;
  *made = reinterpret_cast<cudaGraph_t>(capture->graph.get());
  return kSuccess;
}

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* made) { return cudaError_t(make_stream(made, 0, 0)); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned flags) {
  return cudaError_t(make_stream(made, flags, 0));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* made, unsigned flags, int priority) {
  return cudaError_t(make_stream(made, flags, priority));
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  return on_stream(stream, [&](State&, Lock&, Stream& on) {
    *flags = on.flags;
    return kSuccess;
  });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return on_stream(stream, [&](State&, Lock&, Stream& on) {
    *priority = on.priority;
    return kSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return on_stream(stream, [&](State& s, Lock&, Stream& on) -> int {
    if (!s.streams.contains(&on)) return kInvalidResourceHandle;  // a default one
    if (const std::shared_ptr<Capture> capture = on.capture) {
      capture->valid = false;
      if (capture->origin == &on) s.end(capture);
      capture->streams.erase(&on);
    }
    s.streams.erase(&on);
    return kSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return on_stream(stream,
                   [&](State& s, Lock& lock, Stream& on) { return s.synchronize(lock, on); });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return on_stream(stream, [&](State& s, Lock& lock, Stream& on) -> int {
    if (on.capture) return s.invalidate(*on.capture, kCaptureUnsupported);
    if (on.legacy)
      if (const int error = s.implicit(on.device)) return error;
    return s.schedule.ask(lock, on.last, on.asked) ? s.devices[on.device]->broken : kNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return on_stream(stream, [&](State& s, Lock& lock, Stream& on) -> int {
    Event* of = s.event(event);
    return of == nullptr ? kInvalidResourceHandle : wait(s, lock, on, *of);
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t f, void* argument) {
  return on_stream(stream, [&](State& s, Lock& lock, Stream& on) {
    return s.enqueue(lock, on, [f, argument] { f(argument); });
  });
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t f, void* argument,
                                  unsigned) {
  return on_stream(stream, [&](State& s, Lock& lock, Stream& on) {
    if (on.capture) return s.invalidate(*on.capture, kCaptureUnsupported);
    return s.enqueue(lock, on, [f, argument, stream] { f(stream, cudaSuccess, argument); });
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return on_stream(stream, [&](State& s, Lock&, Stream& on) -> int {
    if (on.legacy) return kCaptureUnsupported;
    if (on.capture) return kIllegalState;
    on.capture = std::make_shared<Capture>();
    on.capture->origin = &on;
    on.capture->mode = mode == cudaStreamCaptureModeGlobal        ? Mode::global
                       : mode == cudaStreamCaptureModeThreadLocal ? Mode::thread_local_
                                                                  : Mode::relaxed;
    on.capture->thread = thread_number();
    on.capture->streams = {&on};
    on.tail.clear();
    s.captures.insert(on.capture);
    return kSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* made) {
  return on_stream(stream,
                   [&](State& s, Lock&, Stream& on) { return finish_capture(s, on, made); });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return on_stream(stream, [&](State& s, Lock&, Stream& on) -> int {
    if (on.legacy && s.would_be_implicit(on.device)) return kCaptureImplicit;
    *status = !on.capture         ? cudaStreamCaptureStatusNone
              : on.capture->valid ? cudaStreamCaptureStatusActive
                                  : cudaStreamCaptureStatusInvalidated;
    return kSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned flags) {
  return cudaError_t(call([&](State& s, Lock&) {
    auto event = std::make_unique<Event>();
    event->flags = flags;
    event->device = current_device;
    *made = reinterpret_cast<cudaEvent_t>(event.get());
    s.events[event.get()] = std::move(event);
    return kSuccess;
  }));
}

cudaError_t cudaEventCreate(cudaEvent_t* made) { return cudaEventCreateWithFlags(made, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return on_event(event, [&](State& s, Lock&, Event& e) {
    s.events.erase(&e);
    return kSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return on_event(event, [&](State& s, Lock& lock, Event& e) -> int {
    Stream* on = s.stream(stream);
    return on == nullptr ? kInvalidResourceHandle : record(s, lock, e, *on);
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return on_event(event, [&](State& s, Lock& lock, Event& e) -> int {
    if (e.capture) return s.invalidate(*e.capture, kCapturedEvent) ? kCapturedEvent : kSuccess;
    if (const int error = s.unsafe()) return error;
    if (!s.schedule.finish(lock, {e.mark})) return kNotPermitted;
    return s.devices[e.device]->broken;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return on_event(event, [&](State& s, Lock& lock, Event& e) -> int {
    if (e.capture) return s.invalidate(*e.capture, kCapturedEvent) ? kCapturedEvent : kSuccess;
    if (const int error = s.unsafe()) return error;
    return s.schedule.ask(lock, e.mark, e.asked) ? s.devices[e.device]->broken : kNotReady;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return on_event(start, [&](State& s, Lock&, Event& a) -> int {
    const Event* b = s.event(end);
    if (b == nullptr || ((a.flags | b->flags) & cudaEventDisableTiming) != 0)
      return kInvalidResourceHandle;
    if (!a.mark || !b->mark || a.device != b->device) return kInvalidResourceHandle;
    if (!a.mark->done || !b->mark->done) return kNotReady;
    *milliseconds = static_cast<float>(b->mark->nanoseconds - a.mark->nanoseconds) * 1e-6f;
    return kSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  return cudaError_t(call([&](State& s, Lock&) -> int {
    const auto found = s.graphs.find(reinterpret_cast<Graph*>(graph));
    if (found == s.graphs.end()) return kInvalidValue;
    auto copy = std::make_shared<Graph>(*found->second);
    *made = reinterpret_cast<cudaGraphExec_t>(copy.get());
    s.executables[copy.get()] = copy;
    return kSuccess;
  }));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return on_stream(stream, [&](State& s, Lock& lock, Stream& on) -> int {
    const auto found = s.executables.find(reinterpret_cast<Graph*>(graph));
    if (found == s.executables.end()) return kInvalidValue;
    return s.enqueue(lock, on, [&s, of = found->second] { s.schedule.replay(*of); });
  });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t stream) {
  return on_stream(stream, [&](State& s, Lock&, Stream&) {
    return s.executables.contains(reinterpret_cast<Graph*>(graph)) ? kSuccess : kInvalidValue;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return cudaError_t(call([&](State& s, Lock&) {
    return s.graphs.erase(reinterpret_cast<Graph*>(graph)) ? kSuccess : kInvalidValue;
  }));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return cudaError_t(call([&](State& s, Lock&) {
    return s.executables.erase(reinterpret_cast<Graph*>(graph)) ? kSuccess : kInvalidValue;
  }));
}

}  // extern "C"

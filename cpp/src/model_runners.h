// SPDX-License-Identifier: Apache-2.0
// The runners of one model, one for each of the latest sizes of its inputs.
#pragma once
#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "model_file.h"
#include "nnl/model.h"
#include "nnl/runner.h"
#include "one_at_a_time.h"
#include "opencl/space.h"

namespace nnl {

extern const std::string one_thread;  // what a model says to a second one

class ModelRunners {
 public:
  // Args: device: "opencl" or "opencl:1"; empty, or "cpu": the host.
  ModelRunners(ModelFile of, const std::string& wanted, const std::string& device);

  void resize(Tensor& x, const Shape& shape);
  void bind(Tensor& t, void* data, size_t bytes);
  void cut(const Runner& runner);  // shows of outputs what the latest run has given
  size_t full_bytes(const Tensor& t) const {
    return fitted_.front().runner->spec(t.value_).bytes();
  }
  bool is_input(const Tensor& t) const { return own_.count(t.value_); }
  bool running() const { return running_; }

  // Takes or makes the runner for the sizes that the inputs have now.
  void fit();

  // Calls one(runner) while nobody changes the arrays that the program reads.
  template <class Run>
  void run(Run&& one) {
    const OneAtATime only(running_, "this model is running already: " + one_thread);
    if (changed_) fit();
    SharedArrays& arrays = shared_.arrays;
    Fitted& now = fitted_.front();
    if (!written_.empty()) {
      const std::unique_lock<std::shared_mutex> alone(arrays.mutex);
      refresh(now);
      now.seen = ++arrays.version;
      for (Use& use : written_) use.array->written(*use.form, now.seen);
      return one(*now.runner);
    }
    std::shared_lock<std::shared_mutex> reading(arrays.mutex);
    while (now.seen != arrays.version) {
      reading.unlock();
      {
        const std::unique_lock<std::shared_mutex> alone(arrays.mutex);
        refresh(now);
      }
      reading.lock();
    }
    one(*now.runner);
  }

  // ValueError: a run is going on.
  OneAtATime alone() {
    return OneAtATime(running_, "this model is running already: " + one_thread);
  }

  size_t arena_bytes() const { return arena_->bytes(); }

  ModelFile file;
  const ProgramData& program;
  std::vector<Tensor> inputs, outputs;

 private:
  static constexpr size_t most = 8;  // runners

  struct Use {
    SharedArray* array;
    Form* form;
  };

  struct Fitted {
    std::vector<int64_t> sizes;  // of the dims
    std::unique_ptr<Runner> runner;
    std::vector<std::shared_ptr<PreparedArray>> prepared;
    uint64_t seen = 0;  // the version of the arrays that what is prepared has
  };

  const ProgramValue& value(int i) const { return program.values[static_cast<size_t>(i)]; }
  void take_given();
  void find_written(const Runner& runner);
  std::vector<int64_t> sizes() const;
  void take_device(const std::string& name);
  Fitted made(std::vector<int64_t> sizes);
  void share_prepared(Fitted& fitted);
  void use_arena(Fitted& fitted);
  void bind_all(Runner& runner);
  void refresh(Fitted& fitted);

  ModelFile::State& shared_;
  opencl::Device* device_ = nullptr;
  opencl::Stored stored_;                       // kernels for it
  ProgramData moving_;                          // the program at the latest sizes, if any are open
  std::list<Fitted> fitted_;                    // the latest one first
  std::shared_ptr<Memory> arena_;               // of all of them: as large as the largest needs
  std::vector<void*> given_;                    // the memory of given values
  std::map<int, std::unique_ptr<Memory>> own_;  // of inputs
  std::vector<size_t> shown_;                   // of the runners' outputs those that are `outputs`
  std::map<int, Use> uses_;                     // of arrays, by given value
  std::vector<Use> written_;
  std::atomic<bool> running_{false};
  bool changed_ = false;  // sizes or memory of inputs or outputs since the latest run
};

}  // namespace nnl

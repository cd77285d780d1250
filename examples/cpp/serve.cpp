// SPDX-License-Identifier: Apache-2.0
// Answers requests of different lengths in batches: those that come at about the same time and are
// about as long become one batch, padded to the longest of them.
//
//   serve texts.nnlp FOLDER_OF_ARRAYS [THREADS]
//
// The program has the inputs ids and keep, (batch, tokens), with open sizes, and gives an array
// (batch, tokens, width): each request gets the rows of its own tokens. Each thread has a model of
// its own, and all share the parameters. Answers all requests one by one, then in batches.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nnl/model.h"
#include "nnl/threads.h"
#include "npy.h"

namespace {

using Clock = std::chrono::steady_clock;
using Ids = std::vector<float>;
using Rows = std::vector<float>;

// Runs requests as one batch, and gives each the rows of its own tokens.
std::vector<Rows> run(nnl::Model& model, const std::vector<const Ids*>& requests) {
  size_t longest = 0;
  for (const Ids* ids : requests) longest = std::max(longest, ids->size());
  nnl::Tensor &ids = model.input("ids"), &keep = model.input("keep");
  for (nnl::Tensor* x : {&ids, &keep})
    x->resize({static_cast<int64_t>(requests.size()), static_cast<int64_t>(longest)});
  for (size_t i = 0; i < requests.size(); ++i) {
    const Ids& request = *requests[i];
    float *to = ids.data<float>() + i * longest, *kept = keep.data<float>() + i * longest;
    std::fill(std::copy(request.begin(), request.end(), to), to + longest, 0.0f);
    std::fill(kept, kept + request.size(), 1.0f);
    std::fill(kept + request.size(), kept + longest, 0.0f);
  }
  model.run();
  const nnl::Tensor& y = model.output(0);
  const auto width = static_cast<size_t>(y.spec().shape.at(2));
  std::vector<Rows> answers;
  for (size_t i = 0; i < requests.size(); ++i) {
    const float* first = y.data<float>() + i * longest * width;
    answers.emplace_back(first, first + requests[i]->size() * width);
  }
  return answers;
}

// Collects requests for threads that run them.
class Server {
 public:
  struct Limits {
    size_t batch = 8;                      // requests at once
    std::chrono::microseconds wait{2000};  // how long the first of a batch waits for others
    size_t bucket = 16;                    // tokens by which they may differ
  };

  Server(const nnl::ModelFile& file, int threads, Limits limits) : limits_(limits) {
    for (int i = 0; i < threads; ++i) models_.emplace_back(file);
    for (nnl::Model& model : models_) threads_.emplace_back([this, &model] { work(model); });
  }

  // Answers what has been asked, and ends.
  ~Server() {
    {
      const std::lock_guard<std::mutex> only(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::future<Rows> ask(Ids ids) {
    Request request{std::move(ids), Clock::now(), {}};
    std::future<Rows> answer = request.answer.get_future();
    {
      const std::lock_guard<std::mutex> only(mutex_);
      queue_.push_back(std::move(request));
    }
    changed_.notify_all();
    return answer;
  }

  size_t batches() const { return batches_; }  // when all is answered

 private:
  struct Request {
    Ids ids;
    Clock::time_point came;
    std::promise<Rows> answer;
  };

  size_t bucket(const Request& r) const { return (r.ids.size() - 1) / limits_.bucket; }

  // The oldest request and others of its bucket. Needs the mutex.
  std::vector<Request> take() {
    std::vector<Request> batch;
    const size_t wanted = bucket(queue_.front());
    std::deque<Request> rest;
    for (Request& r : queue_) {
      const bool fits = batch.size() < limits_.batch && bucket(r) == wanted;
      fits ? batch.push_back(std::move(r)) : rest.push_back(std::move(r));
    }
    queue_ = std::move(rest);
    ++batches_;
    return batch;
  }

  bool is_full() const {
    const auto same = [this](const Request& r) { return bucket(r) == bucket(queue_.front()); };
    return closing_ ||
           static_cast<size_t>(std::count_if(queue_.begin(), queue_.end(), same)) >= limits_.batch;
  }

  void work(nnl::Model& model) {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const Clock::time_point until = queue_.front().came + limits_.wait;
      changed_.wait_until(lock, until, [this] { return queue_.empty() || is_full(); });
      const bool ready =
          !queue_.empty() && (is_full() || queue_.front().came <= until - limits_.wait);
      if (!ready) continue;  // another thread has taken those that this one has waited for
      std::vector<Request> batch = take();
      lock.unlock();
      answer(model, batch);
    }
  }

  static void answer(nnl::Model& model, std::vector<Request>& batch) try {
    std::vector<const Ids*> all;
    for (const Request& r : batch) all.push_back(&r.ids);
    std::vector<Rows> rows = run(model, all);
    for (size_t i = 0; i < batch.size(); ++i) batch[i].answer.set_value(std::move(rows[i]));
  } catch (const nnl::Error&) {  // one that cannot be answered must not keep others from it
    for (Request& r : batch) try {
        r.answer.set_value(run(model, {&r.ids}).front());
      } catch (const nnl::Error&) {
        r.answer.set_exception(std::current_exception());
      }
  }

  const Limits limits_;
  std::vector<nnl::Model> models_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Request> queue_;
  std::vector<std::thread> threads_;
  size_t batches_ = 0;
  bool closing_ = false;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double difference(const Rows& a, const Rows& b) {
  if (a.size() != b.size()) throw std::runtime_error("an answer has other rows than its tokens");
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, double{std::fabs(a[i] - b[i])});
  return most;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::fprintf(stderr, "usage: serve FILE.nnlp FOLDER_OF_ARRAYS [THREADS]\n");
    return 2;
  }
  const auto texts = read_npy<float>(argv[2] + std::string("/texts.npy"));  // 0 after the last one
  std::vector<Ids> requests;
  for (int64_t i = 0; i < texts.rows(); ++i) {
    const float* row = texts.row(i);
    requests.emplace_back(row, std::find(row, row + texts.row_size(), 0.0f));
  }
  nnl::set_threads(1);  // in each model: the threads here are enough
  const nnl::ModelFile file(argv[1]);
  nnl::Model model(file);
  auto start = Clock::now();
  std::vector<Rows> alone;
  for (const Ids& ids : requests) alone.push_back(run(model, {&ids}).front());
  std::printf("one by one: %.0f requests a second\n",
              static_cast<double>(requests.size()) / seconds_since(start));

  const int threads = argc > 3 ? std::atoi(argv[3]) : 2;
  start = Clock::now();
  double most = 0;
  size_t batches = 0;
  {
    Server server(file, threads, {});
    std::vector<std::future<Rows>> answers;
    for (const Ids& ids : requests) answers.push_back(server.ask(ids));
    for (size_t i = 0; i < answers.size(); ++i)
      most = std::max(most, difference(answers[i].get(), alone[i]));
    batches = server.batches();
  }
  std::printf("%d threads: %.0f requests a second, %zu in %zu batches, ", threads,
              static_cast<double>(requests.size()) / seconds_since(start), requests.size(),
              batches);
  if (most > 1e-4) throw std::runtime_error("a batch gives other rows than its requests alone");
  std::printf("each as it is alone\n");
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "serve: error: %s\n", e.what());
  return 1;
}

// SPDX-License-Identifier: Apache-2.0
// A program from a file as a C++ program runs it; damaged files end in an error that names them.
//
// With arguments: runs all programs of damaged copies of these files, in their places.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>

#include "check.h"
#include "damage.h"
#include "nnl/crc32.h"
#include "nnl/memory_plan.h"
#include "nnl/model.h"

using namespace nnl;
using namespace nnl::test;

namespace {

// y = relu(x w + b) as nnl.save_program writes it. In the program "main" b is a state that the
// value 0.5 replaces, in "read" nothing is written.
std::string program_text(const std::string& carries) {
  return R"j({"values":[)j"
         R"j(["float32",[2,3],{"role":"input","name":"x"}],)j"
         R"j(["float32",[3,4],{"role":"parameter","name":"fc/W"}],)j"
         R"j(["float32",[4],{"role":"state","name":"fc/b"}],)j"
         R"j(["float32",[2,4]],["float32",[2,4]],["float32",[4],{"role":"constant","fill":0.5}]],)j"
         R"j("ops":{"affine":{"base_axis":1},"relu":{"inplace":false}},)j"
         R"j("sources":[["affine","affine","fc (train.py:3)","float"]],)j"
         R"j("steps":[{"op":"affine","ins":[1,2,3],"outs":[4],"source":1,"flops":48,"bytes":104},)j"
         R"j({"op":"relu","ins":[4],"outs":[5],"elementwise":{"code":[)j" +
         std::to_string(code_of("relu")) +
         R"j(,0,0,0],"constants":[],"shapes":[[2,4]]}}],)j"
         R"j("outputs":{"y":5},"kept":[5],"plain":[5],"results":[],"carries":)j" +
         carries + R"j(,"fused":true})j";
}

std::string file_of(const std::string& program, const std::string& arrays, size_t count) {
  const size_t end = 4 * count;
  std::string header = R"j({"__metadata__":{"format":"nnlp","version":"1","crc32":")j" +
                       std::to_string(crc32(program.data(), program.size())) + R"j("},)j" + arrays +
                       R"j(,"nnl.program":{"dtype":"U8","shape":[)j" +
                       std::to_string(program.size()) + R"j(],"data_offsets":[)j" +
                       std::to_string(end) + "," + std::to_string(end + program.size()) + "]}}";
  header.resize((header.size() + 8 + 63) / 64 * 64 - 8, ' ');
  const uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), 8);
  bytes += header;
  const auto values = numbers(static_cast<int64_t>(count), 1);
  bytes.append(reinterpret_cast<const char*>(values.data()), end);
  return bytes + program;
}

std::string file_of(const std::string& program) {
  return file_of(program,
                 R"j("fc/W":{"dtype":"F32","shape":[3,4],"data_offsets":[0,48]},)j"
                 R"j("fc/b":{"dtype":"F32","shape":[4],"data_offsets":[48,64]})j",
                 16);
}

std::string file_bytes(bool two = false) {
  std::string program = R"j({"version":1,"programs":{"main":)j" + program_text("[[3,6]]");
  if (two) program += R"j(,"read":)j" + program_text("[]");
  return file_of(program + "}}");
}

const std::string path = "test_model.nnlp";

void check_run(Model& model, const std::vector<float>& x, const float* b) {
  const auto weights = numbers(16, 1);
  model.input("x").copy_from(x.data(), x.size());
  model.run();
  const float* y = model.output("y").data<float>();
  for (size_t i = 0; i < 2; ++i)
    for (size_t j = 0; j < 4; ++j) {
      double sum = b[j];
      for (size_t k = 0; k < 3; ++k) sum += double{x[i * 3 + k]} * weights[k * 4 + j];
      CHECK(std::fabs(y[i * 4 + j] - std::max(sum, 0.0)) < 1e-5);
    }
}

void a_model_runs_and_keeps_its_state() {
  const std::string good = file_bytes();
  write_file(path, good);
  Model model(path);
  const auto x = numbers(6, 7), first = numbers(16, 1);
  const float next[] = {0.5f, 0.5f, 0.5f, 0.5f};
  check_run(model, x, first.data() + 12);
  check_run(model, x, next);  // what it carries from the first run
  CHECK(model.parameter("fc/b").data<float>()[3] == 0.5f);
  Model fresh(path);  // the file has not changed
  check_run(fresh, x, first.data() + 12);
}

void memory_may_be_bound() {
  Model model(path);
  auto x = numbers(6, 7), other = numbers(6, 9);
  float y[8] = {};
  model.input("x").bind(x.data(), 6);
  model.output("y").bind(y, 8);
  CHECK(model.output("y").data<float>() == y && model.input("x").data<float>() == x.data());
  model.run();
  const float before = y[0];
  std::copy(other.begin(), other.end(), x.begin());
  model.run();
  CHECK(y[0] != before);
}

// Builds without kernels that take weights in tiles read them as plain ones.
void tiled_weights_run_in_every_build() {
  const std::string program =
      R"j({"version":1,"programs":{"main":{"values":[)j"
      R"j(["float32",[1,16,2],{"role":"input","name":"x"}],)j"
      R"j(["float32",[32,16,1],{"role":"parameter","name":"W","order":"tiled"}],)j"
      R"j(["float32",[1,32,2]]],)j"
      R"j("ops":{"convolution":{"base_axis":1,"pad":[0],"stride":[1],"dilation":[1],"group":1,)j"
      R"j("channel_last":false}},"sources":[["convolution","convolution","conv","float"]],)j"
      R"j("steps":[{"op":"convolution","ins":[1,2,0],"outs":[3],"source":1}],)j"
      R"j("outputs":{"y":3},"kept":[3],"plain":[3],"results":[],"carries":[],"fused":true}}})j";
  const char* array = R"j("W":{"dtype":"F32","shape":[32,16,1],"data_offsets":[0,2048]})j";
  write_file(path, file_of(program, array, 512));
  const auto x = numbers(32, 7), w = numbers(512, 1);
  Model model(path);
  model.input("x").copy_from(x.data(), x.size());
  model.run();
  const float* y = model.output("y").data<float>();
  for (size_t i = 0; i < 64; ++i) {
    double sum = 0;
    for (size_t c = 0; c < 16; ++c) sum += double{w[i / 2 * 16 + c]} * x[c * 2 + i % 2];
    CHECK(std::fabs(y[i] - sum) < 1e-5);
  }
}

void models_run_in_threads() {
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 3; ++t)
    threads.emplace_back([t] {
      const auto first = numbers(16, 1);
      for (uint32_t n = 0; n < 20; ++n) {
        Model model(path);
        check_run(model, numbers(6, t * 100 + n), first.data() + 12);
      }
    });
  for (std::thread& t : threads) t.join();
}

void programs_of_one_file_share_what_they_write() {
  write_file(path, file_bytes(true));
  const ModelFile file(path);
  Model step(file, "main"), reads(file, "read"), also(file, "read");
  const auto x = numbers(6, 7), first = numbers(16, 1);
  const float next[] = {0.5f, 0.5f, 0.5f, 0.5f};
  check_run(reads, x, first.data() + 12);
  check_run(step, x, first.data() + 12);
  check_run(reads, x, next);
  check_run(also, x, next);
  CHECK(file.parameter("fc/b").data<float>()[3] == 0.5f);
  CHECK(file.programs() == std::vector<std::string>({"main", "read"}));
  CHECK(file.parameters() == std::vector<std::string>({"fc/W", "fc/b"}));
}

// Those that read run at once, one that writes runs alone; the thread sanitizer watches.
void programs_of_one_file_run_in_threads() {
  const ModelFile file(path);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&file, t] {
      Model model(file, t ? "read" : "main");
      const auto x = numbers(6, 7);
      for (int n = 0; n < 50; ++n) {
        model.input("x").copy_from(x.data(), x.size());
        model.run();
      }
    });
  for (std::thread& t : threads) t.join();
}

// One of them runs it, the other one is told; nothing is mixed.
void a_model_shared_by_threads_says_so() {
  const ModelFile file(path);
  for (const char* program : {"main", "read"}) {
    Model model(file, program);
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t)
      threads.emplace_back([&model] {
        for (int n = 0; n < 500; ++n) try {
            model.run();
          } catch (const ValueError& e) {
            CHECK(std::string(e.what()).find("is running already") != std::string::npos);
          }
      });
    for (std::thread& t : threads) t.join();
    model.run();
  }
}

void steps_and_their_costs_are_told() {
  Model model(path, "read");
  const std::vector<StepCost> steps = model.profile();
  CHECK(steps.size() == 2 && steps[0].label == "affine in fc (train.py:3)");
  CHECK(steps[0].op == "affine" && steps[0].flops == 48 && steps[0].bytes == 104);
  CHECK(steps[0].seconds > 0 && steps[1].seconds > 0 && model.steps()[0].seconds == 0);
}

void wrong_use_is_told() {
  write_file(path, file_bytes());
  Model model(path);
  CHECK_ERROR(model.input("z"), "the model has the inputs 'x', not 'z'");
  CHECK_ERROR(model.output(std::string("z")), "the model has the outputs 'y', not 'z'");
  CHECK_ERROR(model.output(1), "the model has 1 outputs, asked for 1, counted from 0");
  const float x[6] = {};
  CHECK_ERROR(model.input("x").copy_from(x, 5), "x has 6 elements, got 5");
  CHECK_ERROR(model.input("x").data<double>(), "x is float32[2, 3], asked for as another type");
  float other[6] = {};
  CHECK_ERROR(model.input("x").bind(other, 5), "x is float32[2, 3], 24 bytes, got 20");
  CHECK_ERROR(model.output("y").bind(nullptr), "y cannot be bound to nothing");
  CHECK_ERROR(model.parameter("fc/b").bind(other), "fc/b is neither an input nor an output");
  CHECK_ERROR(model.parameter("fc/c"), "has no parameter 'fc/c'");
  CHECK_ERROR(Model("no.nnlp"), "no.nnlp: No such file");
  CHECK_ERROR(Model(path, "other"), "has the programs 'main', not 'other'");
}

void damaged_files_are_refused_by_name() {
  write_file(path, file_bytes());
  const int refused = refused_copies(path, SIZE_MAX, [] { Model(path).run(); });
  CHECK(refused > 500);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  CHECK(at != text.npos);
  return text.replace(at, from.size(), to);
}

void programs_that_mean_nothing_are_told() {
  const std::string good = R"j({"version":1,"programs":{"main":)j" + program_text("[[3,6]]") + "}}";
  const char* const changes[][3] = {
      {R"("name":"fc/b"})", R"("name":"fc/b","order":"tiled"})", "float32[4], tiled has no such"},
      {R"("name":"fc/b"})", R"("name":"fc/b","order":"upside down"})", "'upside down' is unknown"},
      {R"("name":"fc/b"})", R"("name":"fc/b","root":2})", "value 3 is no view of its root"},
      {R"("name":"fc/b"})", R"("name":"fc/b","copies":1})", "value 3 is no copy of a given one"},
      {R"("fill":0.5})", R"("fill":0.5,"root":3})", "value 6 is given, and a view"},
      {R"("name":"fc/b")", R"("name":"b")", "there is no tensor 'b'"},
      {R"("float32",[4],{"role":"state")", R"("float31",[4],{"role":"state")",
       "the type 'float31' is unknown"},
      {"[2,4]]", "[2,-4]]", "a size is negative"},
      {"[2,4]]", "[4611686018427387904,4]]", "a shape is larger than any memory"},
      {R"("ins":[4])", R"("ins":[4],"writes":[3])", "relu writes an input that it does not have"},
      {R"("ins":[4])", R"("ins":[],"view":true)", "relu is a view of nothing"},
      {R"("ins":[4])", R"("ins":[9])", "there is no value 9"},
      {R"("op":"relu")", R"("op":"relo")", "there is no op 'relo'"},
      {R"("source":1)", R"("source":2)", "there is no source 2"},
      {"[[3,6]]", "[[4,6]]", "a value is not a given one"},
      {"[[3,6]]", "[[1,6]]", "value 1 gets another shape or type"},
      {R"("outs":[4])", R"("outs":[4,6])", "affine has 1 outputs, not 2"},
      {R"("inplace":false)", R"("packed":true)", "packed weights belong to one machine"},
      {R"({"version":1)", R"({"version":2)", "its version is 1, and 2 in 'nnl.program'"}};
  for (const auto& [from, to, what] : changes) {
    write_file(path, file_of(replaced(good, from, to)));
    CHECK_ERROR(Model{path}, what);
    CHECK_ERROR(Model{path}, path + ": ");
  }
}

// Arrays fill the file, each behind the one before it.
void arrays_lie_apart() {
  const std::string good = file_bytes();
  const auto changed = [&](const std::string& from, const std::string& to) {
    write_file(path, replaced(good, from, to));
    return path;
  };
  CHECK_ERROR(Model(changed("[48,64]", "[40,56]")), "an array is not where the one before it ends");
  CHECK_ERROR(Model(changed("\"fc/b\"", "\"fc/W\"")), "the name 'fc/W' is there twice");
  write_file(path, good + "x");
  CHECK_ERROR(Model{path}, "there are bytes behind the last array");
  CHECK_ERROR(Model(changed("nnl.program", "nnl.progrem")), "it has no tensor 'nnl.program'");
  CHECK_ERROR(Model(changed(R"("version":"1")", R"("version":"4")")),
              "has version 4 of the format, this nnl reads 3");
  CHECK_ERROR(Model(changed(R"("version":"1")", R"("version":"x")")), "its version is unknown");
  CHECK_ERROR(Model(changed("0.5}", "0.6}")), "'nnl.program' has another CRC-32 than it had");
  write_file(path, good.substr(0, 100));
  CHECK_ERROR(Model{path}, "its header is longer than the file");
  for (const char* other : {"1234567", "a,b\n1,2\n3,4\n"}) {  // too short; a table
    write_file(path, other);
    CHECK_ERROR(Model{path}, path + ": it is no program of nnl (nn.save_program writes one)");
  }
}

void buffers_that_are_alive_together_lie_apart() {
  std::vector<Interval> intervals = {
      {0, 1, 100}, {1, 2, 200}, {2, 3, 100}, {0, 3, 10}, {3, 4, 300}};
  const size_t arena = plan_memory(intervals);
  for (const Interval& a : intervals) {
    CHECK(a.offset % 64 == 0 && static_cast<size_t>(a.offset) + a.bytes <= arena);
    for (const Interval& b : intervals)
      if (&a != &b && a.first <= b.last && b.first <= a.last)
        CHECK(a.offset + static_cast<int64_t>(a.bytes) <= b.offset ||
              b.offset + static_cast<int64_t>(b.bytes) <= a.offset);
  }
  CHECK(arena <= 64 + 256 + 320);
  intervals.assign(3, {0, 1, size_t{1} << 61});
  CHECK_ERROR(plan_memory(intervals), "what is computed is larger than any memory");
}

}  // namespace

int main(int count, char** paths) {
  for (int i = 1; i < count; ++i) {
    const std::string own = paths[i];
    const int refused = refused_copies(own, SIZE_MAX, [&] {
      const ModelFile file(own);
      for (const std::string& name : file.programs()) Model(file, name).run();
    });
    std::printf("%s: %d of 1000 refused\n", paths[i], refused);
  }
  if (count > 1) return 0;
  a_model_runs_and_keeps_its_state();
  memory_may_be_bound();
  models_run_in_threads();
  tiled_weights_run_in_every_build();
  programs_of_one_file_share_what_they_write();
  programs_of_one_file_run_in_threads();
  a_model_shared_by_threads_says_so();
  steps_and_their_costs_are_told();
  wrong_use_is_told();
  damaged_files_are_refused_by_name();
  programs_that_mean_nothing_are_told();
  arrays_lie_apart();
  buffers_that_are_alive_together_lie_apart();
  std::remove(path.c_str());
}

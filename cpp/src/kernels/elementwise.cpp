// SPDX-License-Identifier: Apache-2.0
// Element-wise programs over blocks that stay in the first cache.
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "convert.h"
#include "elementwise_codes.h"
#include "elementwise_kernel.h"
#include "nnl/kernel.h"
#include "nnl/threads.h"

namespace nnl {
namespace {

constexpr int64_t register_floats = 1 << 14;  // 64 KiB of stack for all registers of a thread
constexpr int64_t most_slots = 1024;

class Elementwise : public Kernel {
 public:
  // aligned: the shapes of the inputs, of the rank of the outputs or less.
  Elementwise(const Signature& s, const Spec& space, const ElementwiseProgram& program,
              std::vector<int64_t> outputs, std::vector<Reduced> reductions)
      : in_(s.in),
        out_(s.out),
        space_(space),
        outputs_(std::move(outputs)),
        reductions_(std::move(reductions)),
        n_(space.size()) {
    read_inputs(program);
    read_code(program);
    find_numbers();
    find_uses();
    choose_block();
    assign_slots();
    divide();
  }

  bool fits() const { return slots_ <= most_slots && block_ >= 16; }

  size_t workspace() const override {
    return static_cast<size_t>(parts_ * reduced_values_) * sizeof(double);
  }

  void run(const Buffers& b) override {
    const int64_t blocks = (n_ + block_ - 1) / block_;
    if (reductions_.empty()) {
      parallel_for(blocks, grain_,
                   [&](int64_t begin, int64_t end) { run_blocks(b, begin, end, nullptr); });
      return;
    }
    auto* values = static_cast<double*>(b.workspace);
    const int64_t grain = std::max<int64_t>(1, grain_ * parts_ / std::max<int64_t>(blocks, 1));
    parallel_for(parts_, grain, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part)
        run_blocks(b, blocks * part / parts_, blocks * (part + 1) / parts_,
                   values + part * reduced_values_);
    });
    for (const Reduced& r : reductions_) {
      r.reduction.finish(values, reduced_values_, parts_, b.out[r.output]);
      values += r.reduction.size();
    }
  }

  bool may_overwrite(size_t o, size_t i) const override {
    const bool read_last = std::count(outputs_.begin(), outputs_.end(), static_cast<int64_t>(i));
    return patterns_[i].kind == Pattern::full && !(read_last && outputs_.size() > 1) &&
           !is_reduced(o) && bytes_of(in_[i].dtype) == bytes_of(out_[o].dtype);
  }

 private:
  struct Instruction {
    Code code;
    std::array<int64_t, 3> operand;
    int operands;
    int64_t result;
    bool number = false, used = false;
  };
  struct Step {
    Loop loop = nullptr;  // null: load the input `y`
    int y = 0, a = 0, b = 0, c = 0;
  };
  struct Store {
    size_t output;
    int slot;
    bool number;
  };

  void read_inputs(const ElementwiseProgram& program) {
    for (size_t i = 0; i < in_.size(); ++i) {
      const Shape& shape = program.shapes[i];
      const size_t rank = space_.shape.size();
      bool fits = shape.size() <= rank;
      for (size_t a = 0; fits && a < shape.size(); ++a)
        fits = shape[a] == 1 || shape[a] == space_.shape[rank - shape.size() + a];
      if (fits)
        patterns_.push_back(pattern_of(space_, strides_along(space_, shape, in_[i])));
      else
        patterns_.emplace_back();  // an op may have inputs that its program does not read
      unfit_.push_back(!fits);
    }
    if (n_ == 1)  // every pattern is that of a number
      for (Pattern& p : patterns_) p.kind = Pattern::number;
  }

  void read_code(const ElementwiseProgram& program) {
    constants_.assign(program.constants.begin(), program.constants.end());
    const auto inputs = static_cast<int64_t>(in_.size());
    for (size_t k = 0; k * 4 + 3 < program.code.size(); ++k) {
      const int64_t* word = &program.code[k * 4];
      if (word[0] < 0 || word[0] >= static_cast<int64_t>(Code::count))
        throw ValueError("fused_elementwise: unknown instruction " + std::to_string(word[0]));
      const auto code = static_cast<Code>(word[0]);
      const int64_t result = inputs + static_cast<int64_t>(k);
      for (int j = 0; j < operands_of(code); ++j)
        if (word[1 + j] >= result || word[1 + j] < -static_cast<int64_t>(constants_.size()))
          throw ValueError("fused_elementwise: operand " + std::to_string(word[1 + j]) +
                           " of instruction " + std::to_string(k) + " does not exist");
      code_.push_back({code, {word[1], word[2], word[3]}, operands_of(code), result});
    }
    for (int64_t v : outputs_)
      if (v < 0 || v >= inputs + static_cast<int64_t>(code_.size()))
        throw ValueError("fused_elementwise: there is no value " + std::to_string(v));
  }

  bool is_input(int64_t v) const { return v >= 0 && v < static_cast<int64_t>(in_.size()); }

  // A number is the same for all elements: computed once in a run.
  bool is_number(int64_t v) const {
    if (v < 0) return true;
    if (is_input(v)) return patterns_[static_cast<size_t>(v)].kind == Pattern::number;
    return code_[static_cast<size_t>(v) - in_.size()].number;
  }

  void find_numbers() {
    for (Instruction& i : code_) {
      i.number = true;
      for (int j = 0; j < i.operands; ++j) i.number = i.number && is_number(i.operand[j]);
    }
  }

  // last_use_[v]: the last instruction that reads v; that after the last for outputs; -1 if none.
  void find_uses() {
    const auto end = static_cast<int64_t>(code_.size());
    last_use_.assign(in_.size() + code_.size(), -1);
    for (int64_t v : outputs_) last_use_[static_cast<size_t>(v)] = end;
    for (int64_t k = end; k-- > 0;) {
      Instruction& i = code_[static_cast<size_t>(k)];
      i.used = last_use_[static_cast<size_t>(i.result)] >= 0;
      if (!i.used) continue;
      for (int j = 0; j < i.operands; ++j)
        if (i.operand[j] >= 0) {
          int64_t& last = last_use_[static_cast<size_t>(i.operand[j])];
          last = std::max(last, k);
        }
    }
    for (size_t i = 0; i < in_.size(); ++i)
      if (unfit_[i] && last_use_[i] >= 0)
        throw ValueError("input " + std::to_string(i) + " " + in_[i].text() +
                         " does not stretch to " + space_.text());
  }

  bool is_reduced(size_t o) const {
    for (const Reduced& r : reductions_)
      if (r.output == o) return true;
    return false;
  }

  bool is_direct(size_t i) const {
    return in_[i].dtype == DType::f32 && patterns_[i].kind == Pattern::full;
  }

  // An output may be computed in its own memory if no input is read later: it may be theirs.
  bool writes_directly(const Instruction& instruction, int64_t k, size_t& o) const {
    for (o = 0; o < outputs_.size(); ++o)
      if (outputs_[o] == instruction.result && out_[o].dtype == DType::f32 && !is_reduced(o)) break;
    if (o == outputs_.size() || instruction.number) return false;
    for (size_t i = 0; i < in_.size(); ++i)
      if (patterns_[i].kind == Pattern::full && last_use_[i] > k) return false;
    return true;
  }

  // Elements per block: a multiple of the periods of repeated inputs, which then need no reloading.
  void choose_block() {
    int64_t cost = static_cast<int64_t>(out_.size());
    int64_t wanted = 0, needed = 1;
    for (size_t i = 0; i < in_.size(); ++i) {
      if (last_use_[i] < 0) continue;
      ++cost;
      if (!is_direct(i) && patterns_[i].kind != Pattern::number) ++wanted;
    }
    for (const Instruction& i : code_) {
      if (!i.used || i.number) continue;
      cost += cost_of(i.code);
      ++wanted;
    }
    // Registers are not known yet; that there are more than 16 is rare.
    const int64_t base = wanted > 1 || out_[0].dtype != DType::f32 ? 1024 : 4096;
    block_ = base;
    for (Pattern& p : patterns_) {
      if (p.period == 0 || p.period > base) continue;
      const int64_t all = std::lcm(needed, std::lcm(p.period, int64_t{16}));
      const int64_t least = std::lcm(needed, p.period);
      if (all <= base)
        needed = all;
      else if (least <= base)
        needed = least;
    }
    block_ = base / needed * needed;
    grain_ = std::max<int64_t>(1, 49152 / cost / block_);
  }

  int new_register() {
    if (!free_.empty()) {
      const int r = free_.back();
      free_.pop_back();
      return r;
    }
    return registers_++;
  }

  // Slots are places in a table of addresses: registers, inputs, outputs, constants, numbers.
  void assign_slots() {
    const auto end = static_cast<int64_t>(code_.size());
    std::vector<int> home(in_.size() + code_.size(), -1);  // register of a value
    input_register_.assign(in_.size(), -1);
    cached_.assign(in_.size(), 0);
    std::vector<int64_t> number_of(in_.size() + code_.size(), -1);
    std::vector<int64_t> direct(in_.size() + code_.size(), -1);
    for (size_t i = 0; i < in_.size(); ++i) {
      const Pattern& p = patterns_[i];
      cached_[i] = p.kind == Pattern::repeated && p.period > 0 && block_ % p.period == 0 &&
                   last_use_[i] >= 0;
      if (cached_[i]) input_register_[i] = registers_++;
      if (p.kind == Pattern::number && last_use_[i] >= 0) number_of[i] = numbers_++;
    }
    // First pass: registers, with the order of loads; second: the table's final places.
    struct Draft {
      int64_t instruction;  // -1 - i: load of input i
    };
    std::vector<Draft> drafts;
    std::vector<bool> loaded(in_.size(), false);
    auto want = [&](int64_t v) {
      if (!is_input(v)) return;
      const auto i = static_cast<size_t>(v);
      if (loaded[i] || is_direct(i) || cached_[i] || is_number(v)) return;
      loaded[i] = true;
      input_register_[i] = new_register();
      drafts.push_back({-1 - v});
    };
    for (int64_t k = 0; k < end; ++k) {
      Instruction& i = code_[static_cast<size_t>(k)];
      const auto v = static_cast<size_t>(i.result);
      if (!i.used) continue;
      if (i.number) {
        number_of[v] = numbers_++;
        continue;
      }
      for (int j = 0; j < i.operands; ++j) want(i.operand[j]);
      for (int j = 0; j < i.operands; ++j) {  // operands read for the last time give up theirs
        const int64_t u = i.operand[j];
        if (u < 0 || last_use_[static_cast<size_t>(u)] != k) continue;
        int& r =
            is_input(u) ? input_register_[static_cast<size_t>(u)] : home[static_cast<size_t>(u)];
        const bool kept = is_input(u) && cached_[static_cast<size_t>(u)];
        if (r >= 0 && !kept && std::find(free_.begin(), free_.end(), r) == free_.end())
          free_.push_back(r);
      }
      size_t o = 0;
      if (writes_directly(i, k, o))
        direct[v] = static_cast<int64_t>(o);
      else
        home[v] = new_register();
      drafts.push_back({k});
    }
    for (int64_t v : outputs_) want(v);
    spare_ = new_register();  // for outputs that are a number, and for conversions

    const int first_in = registers_, first_out = first_in + static_cast<int>(in_.size());
    first_constant_ = first_out + static_cast<int>(out_.size());
    first_number_ = first_constant_ + static_cast<int>(constants_.size());
    slots_ = first_number_ + numbers_;
    auto slot = [&](int64_t v) {
      if (v < 0) return first_constant_ + static_cast<int>(-1 - v);
      const auto u = static_cast<size_t>(v);
      if (number_of[u] >= 0) return first_number_ + static_cast<int>(number_of[u]);
      if (is_input(v)) return first_in + static_cast<int>(v);
      return direct[u] >= 0 ? first_out + static_cast<int>(direct[u]) : home[u];
    };
    auto step = [&](const Instruction& i) {
      int numbers = 0;
      for (int j = 0; j < i.operands; ++j) numbers |= is_number(i.operand[j]) ? 1 << j : 0;
      Step s{loop_of(i.code, i.number ? 0 : numbers), slot(i.result), slot(i.operand[0]), 0, 0};
      s.b = i.operands > 1 ? slot(i.operand[1]) : s.a;
      s.c = i.operands > 2 ? slot(i.operand[2]) : s.a;
      return s;
    };
    for (const Instruction& i : code_)
      if (i.used && i.number) prologue_.push_back(step(i));
    for (const Draft& d : drafts) {
      if (d.instruction >= 0)
        steps_.push_back(step(code_[static_cast<size_t>(d.instruction)]));
      else
        steps_.push_back({nullptr, static_cast<int>(-1 - d.instruction), 0, 0, 0});
    }
    for (size_t i = 0; i < in_.size(); ++i)
      if (is_direct(i) && last_use_[i] >= 0) direct_inputs_.push_back(i);
    for (size_t o = 0; o < outputs_.size(); ++o) {
      const auto v = static_cast<size_t>(outputs_[o]);
      if (is_reduced(o)) continue;
      if (direct[v] == static_cast<int64_t>(o))
        direct_outputs_.push_back(o);
      else
        stores_.push_back({o, slot(outputs_[o]), is_number(outputs_[o])});
    }
    for (const Reduced& r : reductions_)
      reduced_.push_back({r.output, slot(outputs_[r.output]), is_number(outputs_[r.output])});
    for (size_t i = 0; i < in_.size(); ++i)
      if (number_of[i] >= 0) input_numbers_.push_back({i, static_cast<size_t>(number_of[i])});
    first_in_ = first_in;
    first_out_ = first_out;
    const int64_t room = register_floats / std::max(registers_, 1) / 16 * 16;
    if (room < block_) {  // many registers: cached patterns would not fit the shorter block
      shrink(room);
    }
  }

  // Reductions go by parts that do not depend on the number of threads, each with values of its
  // own.
  void divide() {
    for (const Reduced& r : reductions_) reduced_values_ += r.reduction.size();
    if (reductions_.empty() || block_ == 0) return;
    const int64_t blocks = (n_ + block_ - 1) / block_;
    const int64_t affordable = n_ / 4 / std::max<int64_t>(reduced_values_, 1);
    parts_ = std::clamp<int64_t>(std::min(blocks, affordable), 1, 16);
  }

  void shrink(int64_t room) {
    int64_t needed = 1;
    for (size_t i = 0; i < in_.size(); ++i)
      if (cached_[i]) needed = std::lcm(needed, patterns_[i].period);
    block_ = needed <= room ? room / needed * needed : 0;
    grain_ = std::max<int64_t>(1, grain_);
  }

  void run_blocks(const Buffers& b, int64_t begin, int64_t end, double* values) const {
    double* first = values;
    for (const Reduced& r : reductions_) {
      r.reduction.start(first);
      first += r.reduction.size();
    }
    if (begin == end) return;  // nothing to read, and sizes of 0 divide nothing
    alignas(64) float memory[register_floats];
    float numbers[most_slots];
    float* p[most_slots];
    for (int r = 0; r < registers_; ++r) p[r] = memory + r * block_;
    float** constants = p + first_constant_;
    for (size_t k = 0; k < constants_.size(); ++k)
      constants[k] = const_cast<float*>(&constants_[k]);
    for (int k = 0; k < numbers_; ++k) p[first_number_ + k] = numbers + k;
    for (auto [i, k] : input_numbers_)
      conversion(in_[i].dtype, DType::f32)(b.in[i], numbers + k, 1);
    for (const Step& s : prologue_) s.loop(p[s.y], p[s.a], p[s.b], p[s.c], 1);
    float **in = p + first_in_, **out = p + first_out_;
    for (size_t i = 0; i < in_.size(); ++i)
      if (cached_[i])
        in[i] = const_cast<float*>(gather(patterns_[i], b.in[i], in_[i].dtype, 0,
                                          std::min(block_, n_), p[input_register_[i]]));
    for (int64_t block = begin; block < end; ++block) {
      const int64_t start = block * block_, n = std::min(block_, n_ - start);
      for (size_t i : direct_inputs_) in[i] = static_cast<float*>(b.in[i]) + start;
      for (size_t o : direct_outputs_) out[o] = static_cast<float*>(b.out[o]) + start;
      for (const Step& s : steps_) {
        if (s.loop)
          s.loop(p[s.y], p[s.a], p[s.b], p[s.c], n);
        else
          in[s.y] = load_input(b, static_cast<size_t>(s.y), start, n, p);
      }
      for (const Store& s : stores_) {
        const float* x = p[s.slot];
        if (s.number) x = std::fill_n(p[spare_], n, *x) - n;
        const DType type = out_[s.output].dtype;
        conversion(DType::f32, type)(x, at(b.out[s.output], type, start), n);
      }
      first = values;
      for (size_t k = 0; k < reductions_.size(); ++k) {
        const float* x = p[reduced_[k].slot];
        if (reduced_[k].number) x = std::fill_n(p[spare_], n, *x) - n;
        reductions_[k].reduction.add(x, start, n, first);
        first += reductions_[k].reduction.size();
      }
    }
  }

  float* load_input(const Buffers& b, size_t i, int64_t start, int64_t n, float** p) const {
    const DType type = in_[i].dtype;
    float* y = p[input_register_[i]];
    if (patterns_[i].kind != Pattern::full)
      return const_cast<float*>(gather(patterns_[i], b.in[i], type, start, n, y));
    conversion(type, DType::f32)(at(b.in[i], type, start), y, n);
    return y;
  }

  std::vector<Spec> in_, out_;
  Spec space_;  // what the program runs over
  std::vector<int64_t> outputs_;
  std::vector<Reduced> reductions_;
  int64_t n_;
  std::vector<Pattern> patterns_;
  std::vector<bool> unfit_;
  std::vector<float> constants_;
  std::vector<Instruction> code_;
  std::vector<int64_t> last_use_;
  int64_t block_ = 0, grain_ = 1;
  std::vector<int> free_, input_register_;
  std::vector<char> cached_;
  std::vector<size_t> direct_inputs_, direct_outputs_;
  int registers_ = 0, spare_ = 0, first_in_ = 0, first_out_ = 0, first_constant_ = 0;
  int first_number_ = 0, numbers_ = 0, slots_ = 0;
  std::vector<std::pair<size_t, size_t>> input_numbers_;
  std::vector<Step> prologue_, steps_;
  std::vector<Store> stores_, reduced_;
  int64_t parts_ = 1, reduced_values_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> make_elementwise(const Signature& s, const Spec& space,
                                         const ElementwiseProgram& program,
                                         std::vector<int64_t> outputs,
                                         std::vector<Reduced> reductions) {
  if (reductions.empty())
    if (auto table = elementwise_table(s, space, program, outputs)) return table;
  size_t reduced = 0;
  for (size_t o = 0; o < s.out.size(); ++o) {
    const Spec& out = s.out[o];
    if (out.dtype == DType::f64) return nullptr;
    if (reduced < reductions.size() && reductions[reduced].output == o)
      ++reduced;
    else if (out.shape != space.shape || out.layout != space.layout)
      return nullptr;
  }
  for (size_t i = 0; i < s.in.size(); ++i)
    if (!s.given(i) || s.in[i].dtype == DType::f64) return nullptr;
  auto kernel =
      std::make_unique<Elementwise>(s, space, program, std::move(outputs), std::move(reductions));
  return kernel->fits() ? std::move(kernel) : nullptr;
}

}  // namespace nnl

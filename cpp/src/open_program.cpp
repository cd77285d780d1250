// SPDX-License-Identifier: Apache-2.0
// Open programs at given sizes.
#include "open_program.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "nnl/rules.h"

namespace nnl {
namespace {

using Kind = SizeOp::Kind;

std::string text_of(const Shape& shape) { return Spec{shape}.text().substr(7); }

// ---- numbers ----

struct Number {
  bool is_real = false;
  int64_t whole = 0;
  double real = 0;
  double as_real() const { return is_real ? real : static_cast<double>(whole); }
};

[[noreturn]] void too_large() { throw ValueError("a size is larger than 64 bits"); }

int64_t floor_divided(int64_t a, int64_t b) {
  if (b == -1) {
    int64_t negative;
    if (__builtin_sub_overflow(int64_t{0}, a, &negative)) too_large();
    return negative;
  }
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

// Rounded as Python does it: by the remainder, which is exact.
double floor_divided(double a, double b) {
  const double rest = std::fmod(a, b);
  double n = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) n -= 1;
  const double down = std::floor(n);
  return n - down > 0.5 ? down + 1 : down;
}

Number joined(Kind kind, const Number& a, const Number& b) {
  if ((kind == Kind::divide || kind == Kind::floor_divide) && b.as_real() == 0)
    throw ValueError("a size that something is divided by is 0");
  if (kind == Kind::least) return b.as_real() < a.as_real() ? b : a;
  if (kind == Kind::greatest) return b.as_real() > a.as_real() ? b : a;
  if (kind == Kind::divide) return {true, 0, a.as_real() / b.as_real()};
  if (a.is_real || b.is_real) {
    const double x = a.as_real(), y = b.as_real();
    if (kind == Kind::add) return {true, 0, x + y};
    if (kind == Kind::subtract) return {true, 0, x - y};
    if (kind == Kind::multiply) return {true, 0, x * y};
    return {true, 0, floor_divided(x, y)};
  }
  Number n;
  bool over = false;
  if (kind == Kind::add) {
    over = __builtin_add_overflow(a.whole, b.whole, &n.whole);
  } else if (kind == Kind::subtract) {
    over = __builtin_sub_overflow(a.whole, b.whole, &n.whole);
  } else if (kind == Kind::multiply) {
    over = __builtin_mul_overflow(a.whole, b.whole, &n.whole);
  } else {
    n.whole = floor_divided(a.whole, b.whole);
  }
  if (over) too_large();
  return n;
}

// ---- a program at other sizes ----

class Mover {
 public:
  // Args: given: shapes of the inputs of a program inside a step.
  Mover(ProgramData& program, const std::vector<int64_t>& dims,
        const std::vector<Shape>* given = nullptr)
      : program_(program), dims_(dims), known_(program.values.size(), Known::yes) {
    for (size_t i = 1; i < known_.size(); ++i)
      if (!program.values[i].sizes.empty()) known_[i] = Known::by_expression;
    for (const ProgramStep& step : program.steps) note_made(step);
    if (given) take(*given);
  }

  void run() {
    for (ProgramStep& step : program_.steps) move(step);
    for (size_t i = 1; i < known_.size(); ++i) know(static_cast<int>(i), 0);
    check_values(program_);
  }

 private:
  enum class Known : uint8_t { yes, by_expression, by_step };

  ProgramValue& value(int i) { return program_.values[static_cast<size_t>(i)]; }

  void note_made(const ProgramStep& step) {
    for (int o : step.out)
      if (!value(o).given()) known_[static_cast<size_t>(o)] = Known::by_step;
    for (const ProgramStep& part : step.parts) note_made(part);
  }

  void take(const std::vector<Shape>& shapes) {
    size_t k = 0;
    for (size_t i = 1; i < program_.values.size(); ++i) {
      if (program_.values[i].role != ProgramValue::Role::input) continue;
      if (k == shapes.size()) throw ValueError("a program inside has more inputs than it gets");
      known_[i] = Known::by_expression;
      set(static_cast<int>(i), shapes[k++]);
    }
    if (k < shapes.size()) throw ValueError("a program inside has fewer inputs than it gets");
  }

  void set(int i, const Shape& shape) {
    ProgramValue& v = value(i);
    if (known_[static_cast<size_t>(i)] == Known::yes) {  // of a step and its parts, or of a weight
      if (v.spec.shape != shape)
        throw ValueError("value " + std::to_string(i) + " has the shape " + text_of(v.spec.shape) +
                         ", and is given " + text_of(shape));
      return;
    }
    double bytes = static_cast<double>(bytes_of(v.spec.dtype));
    for (int64_t n : shape) {
      bytes *= static_cast<double>(std::max<int64_t>(n, 1));
      if (n < 0 || bytes > 0x1p62)
        throw ValueError("value " + std::to_string(i) + " would have the shape " + text_of(shape));
    }
    v.spec.shape = shape;
    known_[static_cast<size_t>(i)] = Known::yes;
  }

  // Gives a value that no step makes its shape. Depth: of such values that depend on each other.
  void know(int i, int depth) {
    if (known_[static_cast<size_t>(i)] != Known::by_expression) return;
    if (depth > 64) throw ValueError("open sizes depend on each other");
    const ProgramValue& v = value(i);
    Shape shape;
    for (const SizeExpression& size : v.sizes) {
      const Number n = evaluated(size, depth);
      if (n.is_real) throw ValueError("value " + std::to_string(i) + " has a size that is a float");
      shape.push_back(n.whole);
    }
    set(i, shape);
  }

  int64_t size(const SizeOp& op, int depth) {
    const auto i = static_cast<size_t>(op.a);
    know(static_cast<int>(i), depth + 1);
    if (known_[i] != Known::yes)
      throw ValueError("a size of value " + std::to_string(i) + " is asked for before it is made");
    return program_.values[i].spec.shape[static_cast<size_t>(op.b)];
  }

  Number evaluated(const SizeExpression& expression, int depth = 0) {
    std::array<Number, 66> stack;  // expressions are no deeper than that
    size_t n = 0;
    for (const SizeOp& op : expression) {
      switch (op.kind) {
        case Kind::whole:
          stack[n++] = {false, op.a, 0};
          break;
        case Kind::real:
          stack[n++] = {true, 0, op.real};
          break;
        case Kind::dim:
          stack[n++] = {false, dims_[static_cast<size_t>(op.a)], 0};
          break;
        case Kind::axis:
          stack[n++] = {false, size(op, depth), 0};
          break;
        default:
          --n;
          stack[n - 1] = joined(op.kind, stack[n - 1], stack[n]);
      }
    }
    return stack[0];
  }

  Attribute closed(const OpenAttribute& open) {
    std::vector<Number> numbers;
    for (const SizeExpression& e : open.numbers) numbers.push_back(evaluated(e));
    const bool real =
        std::any_of(numbers.begin(), numbers.end(), [](const Number& n) { return n.is_real; });
    if (!open.list) return real ? Attribute(numbers[0].real) : Attribute(numbers[0].whole);
    std::vector<double> reals;
    std::vector<int64_t> wholes;
    for (const Number& n : numbers) real ? reals.push_back(n.as_real()) : wholes.push_back(n.whole);
    return real ? Attribute(std::move(reals)) : Attribute(std::move(wholes));
  }

  void move(ProgramStep& step) {
    for (ProgramStep& part : step.parts) move(part);
    try {
      for (int i : step.in)
        if (i) know(i, 0);
      for (const OpenAttribute& open : step.open) step.attributes[open.name] = closed(open);
      for (size_t k = 0; k < step.open_seen.size(); ++k) {
        const Attribute seen = closed(step.open_seen[k]);
        const auto* shape = std::get_if<std::vector<int64_t>>(&seen);
        if (!shape) throw ValueError("its element-wise program is for no sizes");
        step.shapes[k] = *shape;
      }
      for (size_t k = 0; k < step.open_constants.size(); ++k)
        step.constants[k] = evaluated(step.open_constants[k]).as_real();
      if (!step.programs.empty()) return move_inside(step);
      Signature s;
      s.attributes = Attributes::of(step.attributes);
      for (int i : step.in) {
        s.in_given.push_back(i != 0);
        s.in.push_back(i ? value(i).spec : Spec{});
      }
      const std::vector<Spec> made = infer(step.op, s);
      for (size_t k = 0; k < std::min(step.out.size(), made.size()); ++k)
        set(step.out[k], made[k].shape);
      check_made(program_.values, step, made);
      if (!step.code.empty()) check_stretch(step);
    } catch (const ValueError& e) {
      throw ValueError(step.label + " does not take the sizes " + sizes() + ": " + e.what());
    }
  }

  // The shapes that an element-wise program is for have to be those of what it reads and makes.
  void check_stretch(const ProgramStep& step) {
    bool fits = step.shapes.size() == step.in.size() && step.out.size() == 1;
    for (size_t k = 0; fits && k < step.in.size(); ++k) {
      const Shape &y = value(step.out[0]).spec.shape, &seen = step.shapes[k];
      fits = seen.size() <= y.size();
      int64_t n = 1;
      for (size_t i = 0; fits && i < seen.size(); ++i) {
        fits = seen[i] == 1 || seen[i] == y[y.size() - seen.size() + i];
        n *= seen[i];
      }
      fits = fits && n == value(step.in[k]).spec.size();
    }
    if (!fits) throw ValueError("its element-wise program is for other arrays");
  }

  // "batch=2, width=64"
  std::string sizes() const {
    std::string text;
    for (size_t i = 0; i < program_.dims.size(); ++i)
      text += (i ? ", " : "") + program_.dims[i].name + "=" + std::to_string(dims_[i]);
    return text.empty() ? "of what it reads" : text;
  }

  // Programs inside get the shapes of what the step reads, and it makes what they give.
  void move_inside(ProgramStep& step) {
    std::vector<Shape> x;
    for (size_t k = 1; k < step.in.size(); ++k) x.push_back(value(step.in[k]).spec.shape);
    if (step.op == "switch") {
      std::vector<Shape> y;
      for (auto& [name, programs] : step.programs)
        for (ProgramData& inner : programs) y = moved(inner, x);
      return set_all(step, y);
    }
    if (step.op != "while") throw ValueError("there are no programs inside of " + step.op);
    const Attributes attributes = Attributes::of(step.attributes);
    const auto most = static_cast<int64_t>(x.size());
    const int64_t n = attributes.integer("carried"), m = attributes.integer("scanned");
    if (n < 0 || m < 0 || n > most || m > most - n)
      throw ValueError("it carries or scans more than there is");
    std::vector<Shape> body = x, rest = x, y;
    for (auto row = body.begin() + n; row < body.begin() + n + m; ++row) {
      if (row->empty()) throw ValueError("it scans a number");
      row->erase(row->begin());
    }
    rest.erase(rest.begin() + n, rest.begin() + n + m);
    for (auto& [name, programs] : step.programs)
      for (ProgramData& inner : programs) {
        if (name == "body") y = moved(inner, body);
        if (name == "condition") moved(inner, rest);
      }
    for (size_t k = static_cast<size_t>(n); k < y.size(); ++k)
      y[k].insert(y[k].begin(), attributes.integer("rows"));
    y.emplace_back();  // the number of trips
    set_all(step, y);
  }

  void set_all(const ProgramStep& step, const std::vector<Shape>& y) {
    if (y.size() != step.out.size())
      throw ValueError("the outputs are others than those of a program inside");
    for (size_t k = 0; k < y.size(); ++k) set(step.out[k], y[k]);
  }

  static std::vector<Shape> moved(ProgramData& inner, const std::vector<Shape>& inputs) {
    static const std::vector<int64_t> none;
    Mover(inner, none, &inputs).run();
    std::vector<Shape> found;
    for (const auto& [name, i] : inner.outputs)
      found.push_back(inner.values[static_cast<size_t>(i)].spec.shape);
    return found;
  }

  ProgramData& program_;
  const std::vector<int64_t>& dims_;
  std::vector<Known> known_;
};

void close(std::vector<ProgramStep>& steps) {
  for (ProgramStep& step : steps) {
    step.open.clear(), step.open_seen.clear(), step.open_constants.clear();
    close(step.parts);
    for (auto& [name, programs] : step.programs)
      for (ProgramData& inner : programs) {
        for (ProgramValue& v : inner.values) v.sizes.clear();
        close(inner.steps);
      }
  }
}

struct Shown {
  std::string& text;
  void operator()(std::monostate) const {}
  void operator()(int64_t n) const { text += std::to_string(n) + ","; }
  void operator()(double x) const {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%a,", x);
    text += buffer;
  }
  void operator()(bool b) const { text += b ? "true," : "false,"; }
  void operator()(const std::string& s) const { text += s + ","; }
  template <class T>
  void operator()(const std::vector<T>& items) const {
    for (const T& item : items) (*this)(item);
  }
};

// ---- what is written, and what follows ----

void compare(const std::vector<ProgramStep>& written, const std::vector<ProgramStep>& moved);

void compare(const ProgramData& written, const ProgramData& moved) {
  for (size_t i = 1; i < written.values.size(); ++i) {
    const Shape &a = written.values[i].spec.shape, &b = moved.values[i].spec.shape;
    if (a != b)
      throw ValueError("value " + std::to_string(i) + " has the shape " + text_of(a) +
                       ", and its open sizes give " + text_of(b));
  }
  compare(written.steps, moved.steps);
}

void compare(const std::vector<ProgramStep>& written, const std::vector<ProgramStep>& moved) {
  for (size_t t = 0; t < written.size(); ++t) {
    const ProgramStep &a = written[t], &b = moved[t];
    const auto differ = [&](const std::string& name) {
      throw ValueError(a.label + ": " + name + " is not what its open sizes give");
    };
    for (const OpenAttribute& open : a.open)
      if (a.attributes.at(open.name) != b.attributes.at(open.name)) differ(open.name);
    if (a.shapes != b.shapes || a.constants != b.constants) differ("its element-wise program");
    compare(a.parts, b.parts);
    for (const auto& [name, programs] : a.programs)
      for (size_t k = 0; k < programs.size(); ++k) compare(programs[k], b.programs.at(name)[k]);
  }
}

}  // namespace

void OpenSize::check(int64_t size) const {
  if (size >= least && size <= greatest && size % multiple == 0) return;
  throw ValueError(name + " is " + std::to_string(size) + ", wanted at least " +
                   std::to_string(least) +
                   (greatest == largest ? "" : " and at most " + std::to_string(greatest)) +
                   (multiple == 1 ? "" : ", a multiple of " + std::to_string(multiple)));
}

void move_to(ProgramData& program, const std::vector<int64_t>& sizes) {
  if (sizes.size() != program.dims.size())
    throw ValueError("got " + std::to_string(sizes.size()) + " sizes, the program has " +
                     std::to_string(program.dims.size()) + " open ones");
  for (size_t i = 0; i < sizes.size(); ++i) program.dims[i].check(sizes[i]);
  Mover(program, sizes).run();
}

ProgramData at(const ProgramData& program, const std::map<std::string, int64_t>& sizes) {
  ProgramData found = program;
  std::vector<int64_t> numbers;
  size_t used = 0;
  for (const OpenSize& dim : program.dims) {
    const auto given = sizes.find(dim.name);
    used += given != sizes.end();
    numbers.push_back(given == sizes.end() ? dim.example : given->second);
  }
  if (used != sizes.size())
    for (const auto& [name, n] : sizes)
      if (std::none_of(program.dims.begin(), program.dims.end(),
                       [&](const OpenSize& dim) { return dim.name == name; }))
        throw ValueError("there is no open size '" + name + "'");
  move_to(found, numbers);
  found.dims.clear();
  for (ProgramValue& v : found.values) v.sizes.clear();
  close(found.steps);
  return found;
}

ProgramData example_of(const ProgramData& program) {
  std::vector<int64_t> sizes;
  for (const OpenSize& dim : program.dims) sizes.push_back(dim.example);
  ProgramData moved = program;
  move_to(moved, sizes);
  compare(program, moved);
  return moved;
}

std::string text_of_open(const ProgramStep& step) {
  std::string text;
  for (const OpenAttribute& open : step.open) {
    text += " " + open.name + "=";
    std::visit(Shown{text}, step.attributes.at(open.name));
  }
  if (!step.open_seen.empty()) {
    text += " seen=";
    for (const Shape& shape : step.shapes) text += text_of(shape);
  }
  if (!step.open_constants.empty()) Shown{text}(step.constants);
  for (const ProgramStep& part : step.parts) text += " " + part.op + text_of_open(part);
  return text;
}

// ---- values ----

void check_order(const Spec& spec) {
  const auto rank = spec.shape.size();
  const bool tiles = rank >= 3 && spec.shape[0] % 16 == 0 && spec.shape[1] % 16 == 0;
  if ((spec.layout == Layout::channels_last && rank < 3) ||
      (spec.layout == Layout::tiled && !tiles))
    throw ValueError(spec.text() + " has no such order");
}

void check_values(const ProgramData& program) {
  const auto at = [&](int i) -> const ProgramValue& {
    if (i <= 0 || i >= static_cast<int>(program.values.size()))
      throw ValueError("there is no value " + std::to_string(i));
    return program.values[static_cast<size_t>(i)];
  };
  for (size_t i = 1; i < program.values.size(); ++i) {
    const ProgramValue &v = program.values[i], &root = at(v.root);
    check_order(v.spec);
    if (&at(root.root) != &root || root.spec.bytes() != v.spec.bytes())
      throw ValueError("value " + std::to_string(i) + " is no view of its root");
    if (v.given() && v.root != static_cast<int>(i))
      throw ValueError("value " + std::to_string(i) + " is given, and a view");
    if (v.copies && (!v.given() || !at(v.copies).given() || at(v.copies).copies ||
                     at(v.copies).spec.shape != v.spec.shape))
      throw ValueError("value " + std::to_string(i) + " is no copy of a given one");
  }
  // What becomes the new copy of a weight is as large as the copy that is read.
  for (auto [made, weight] : program.results)
    for (const ProgramValue& v : program.values)
      if (v.copies == weight && v.spec.bytes() != at(made).spec.bytes())
        throw ValueError("value " + std::to_string(made) + " is no copy of a weight");
  for (auto [to, from] : program.carries)
    if (from &&
        (at(from).spec.shape != at(to).spec.shape || at(from).spec.dtype != at(to).spec.dtype))
      throw ValueError("value " + std::to_string(to) + " gets another shape or type");
}

}  // namespace nnl

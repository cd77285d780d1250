// SPDX-License-Identifier: Apache-2.0
#include "rule.h"

#include <algorithm>
#include <map>
#include <sstream>

namespace nnl {
namespace {

struct Entry {
  std::vector<RuleInput> inputs;
  size_t required = 0;
  RuleOf rule = nullptr;
};

std::map<std::string, Entry>& table() {
  static std::map<std::string, Entry> t;
  return t;
}

const Entry& entry_of(const std::string& op) {
  const auto found = table().find(op);
  if (found == table().end()) throw ValueError(op + ": this build has no shape rule of it");
  return found->second;
}

std::string text_of(const Shape& shape) {
  std::string s = "(";
  for (size_t i = 0; i < shape.size(); ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + (shape.size() == 1 ? ",)" : ")");
}

// Whether the bytes of an array can be counted; an axis of size 0 does not help the others.
bool sound(const Spec& spec) {
  double bytes = static_cast<double>(bytes_of(spec.dtype));
  for (int64_t n : spec.shape) {
    if (n < 0 || n > longest_axis) return false;
    bytes *= static_cast<double>(std::max<int64_t>(n, 1));
  }
  return bytes <= 0x1p62;
}

}  // namespace

ShapeRule::ShapeRule(const char* op, const char* inputs, RuleOf rule) {
  Entry entry;
  std::istringstream words(inputs);
  for (std::string word; words >> word;) {
    RuleInput x;
    x.variadic = word.front() == '*';
    x.optional = word.find('?') != word.npos, x.whole = word.find('#') != word.npos;
    x.name = word.substr(x.variadic, word.find_first_of("?#") - x.variadic);
    entry.inputs.push_back(x);
    if (!x.variadic && !x.optional) entry.required = entry.inputs.size();
  }
  entry.rule = rule;
  table()[op] = std::move(entry);
}

ShapeRule::ShapeRule(std::initializer_list<const char*> ops, const char* inputs, RuleOf rule) {
  for (const char* op : ops) ShapeRule(op, inputs, rule);
}

const std::vector<RuleInput>& rule_inputs(const std::string& op) { return entry_of(op).inputs; }

std::vector<Spec> infer(const std::string& op, const Signature& s) {
  const Entry& e = entry_of(op);
  const std::vector<RuleInput>& known = e.inputs;
  const RuleCall call{op, known, s.attributes, s.in, s.in_given};
  const bool variadic = !known.empty() && known.back().variadic;
  if (s.in.size() != s.in_given.size() || s.in.size() < e.required ||
      (s.in.size() > known.size() && !variadic))
    call.fail("got " + std::to_string(s.in.size()) + " inputs, wanted " +
              std::to_string(known.size()));
  for (size_t i = 0; i < s.in.size(); ++i) {
    const RuleInput& x = known[std::min(i, known.size() - 1)];
    if (!s.in_given[i] && !x.optional) call.fail(x.name + " is missing");
    if (!sound(s.in[i])) call.fail(call.text(i) + " is larger than any memory");
    if (x.name == "rng" && s.in_given[i] && (s.in[i].dtype != DType::u64 || s.in[i].size() != 2))
      call.fail(i, "uint64[2]");
  }
  Specs out;
  try {
    out = e.rule(call);
  } catch (const ValueError& wrong) {  // of an attribute
    const std::string what = wrong.what();
    if (what.compare(0, op.size(), op) == 0) throw;
    throw ValueError(op + ": " + what);
  }
  for (Spec& y : out) {
    y.layout = Layout::plain;
    if (!sound(y)) call.fail("the result " + y.text() + " is larger than any memory");
  }
  return out;
}

std::vector<std::string> rule_names() {
  std::vector<std::string> names;
  for (const auto& [name, entry] : table()) names.push_back(name);
  return names;
}

// ---- attributes ----

int64_t RuleCall::integer(const char* name, int64_t least, int64_t most) const {
  const int64_t n = attributes.integer(name);
  if (n < least || n > most)
    fail(std::string(name) + " is " + std::to_string(n) + ", wanted at least " +
         std::to_string(least) + " and at most " + std::to_string(most));
  return n;
}

std::vector<int64_t> RuleCall::integers(const char* name, int64_t least, int64_t most) const {
  const std::vector<int64_t>& values = attributes.integers(name);
  for (int64_t n : values)
    if (n < least || n > most)
      fail(std::string(name) + " is " + text_of(values) + ", wanted numbers of at least " +
           std::to_string(least) + " and at most " + std::to_string(most));
  return values;
}

size_t RuleCall::axis(const char* name, size_t rank) const {
  const int64_t n = attributes.integer(name);
  if (n < 0 || n >= static_cast<int64_t>(rank))
    fail(std::string(name) + " is " + std::to_string(n) + ", wanted an axis in [0, " +
         std::to_string(rank) + ") for " + text(0));
  return static_cast<size_t>(n);
}

std::vector<bool> RuleCall::axes(const char* name, size_t rank) const {
  std::vector<bool> found(rank);
  for (int64_t n : attributes.integers(name)) {
    if (n < 0 || n >= static_cast<int64_t>(rank) || found[static_cast<size_t>(n)])
      fail(std::string(name) + " is " + text_of(attributes.integers(name)) +
           ", wanted different axes in [0, " + std::to_string(rank) + ") for " + text(0));
    found[static_cast<size_t>(n)] = true;
  }
  return found;
}

void RuleCall::one_of(const char* name, std::initializer_list<const char*> words) const {
  const std::string& word = attributes.text(name);
  std::string known;
  for (const char* w : words) {
    if (word == w) return;
    known += (known.empty() ? "'" : ", '") + std::string(w) + "'";
  }
  fail(std::string(name) + " is '" + word + "', wanted one of " + known);
}

void RuleCall::in_range(const char* name, bool holds, const char* wanted) const {
  if (!holds) {
    std::ostringstream number;
    number << attributes.number(name);
    fail(std::string(name) + " is " + number.str() + ", wanted " + wanted);
  }
}

// ---- inputs ----

std::string RuleCall::text(size_t i) const {
  if (in.empty()) return "no input";
  const size_t last = inputs.size() - 1;
  const bool several = i > last || (i == last && in.size() > inputs.size());
  return inputs[std::min(i, last)].name + (several ? "[" + std::to_string(i - last) + "] " : " ") +
         in[i].text();
}

void RuleCall::fail(const std::string& what) const { throw ValueError(op + ": " + what); }

void RuleCall::fail(size_t i, const std::string& wanted) const {
  fail(text(i) + ", wanted " + wanted);
}

void RuleCall::same_shape(size_t i, size_t as) const {
  if (given(i) && given(as) && in[i].shape != in[as].shape) fail(i, "the shape of " + text(as));
}

void RuleCall::has_shape(size_t i, const Shape& wanted) const {
  if (given(i) && in[i].shape != wanted) fail(i, "the shape " + text_of(wanted));
}

void RuleCall::has_type(size_t i, DType type) const {
  if (given(i) && in[i].dtype != type) fail(i, std::string("the type ") + name_of(type));
}

int RuleCall::rank_at_least(size_t i, int least) const {
  if (in[i].rank() < least)
    fail(i, "rank " + std::to_string(least) + " or more, got rank " + std::to_string(in[i].rank()));
  return in[i].rank();
}

// ---- specs ----

Spec with_shape(Spec x, Shape shape) {
  x.shape = std::move(shape);
  return x;
}

Spec with_type(Spec x, DType type) {
  x.dtype = type;
  return x;
}

Shape kept_shape(const Shape& shape, const std::vector<bool>& axes) {
  Shape y = shape;
  for (size_t i = 0; i < y.size(); ++i)
    if (axes[i]) y[i] = 1;
  return y;
}

Shape dropped_shape(const Shape& shape, const std::vector<bool>& axes) {
  Shape y;
  for (size_t i = 0; i < shape.size(); ++i)
    if (!axes[i]) y.push_back(shape[i]);
  return y;
}

int64_t product(Shape::const_iterator begin, Shape::const_iterator end) {
  int64_t n = 1;
  for (; begin != end; ++begin) n *= *begin;
  return n;
}

bool stretches(const Shape& x, const Shape& to) {
  if (x.size() != to.size()) return false;
  for (size_t i = 0; i < x.size(); ++i)
    if (x[i] != to[i] && x[i] != 1) return false;
  return true;
}

Shape together(const RuleCall& c, size_t i, size_t j) {
  const Shape &a = c[i].shape, &b = c[j].shape;
  if (a.size() != b.size()) c.fail(j, "the rank of " + c.text(i));
  Shape y = a;
  for (size_t k = 0; k < y.size(); ++k) {
    if (a[k] != b[k] && a[k] != 1 && b[k] != 1) c.fail(j, "sizes that stretch to " + c.text(i));
    if (a[k] == 1) y[k] = b[k];
  }
  return y;
}

Specs same(const RuleCall& c) { return {c[0]}; }

}  // namespace nnl

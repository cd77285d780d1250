// SPDX-License-Identifier: Apache-2.0
#include "network.h"

#include <algorithm>
#include <cctype>
#include <random>
#include <set>

#include "../graph/elementwise.h"
#include "../graph/graph.h"
#include "loops.h"
#include "message.h"
#include "nnl/rules.h"

namespace nnl {
namespace {

std::string letters(const std::string& name) {
  std::string out;
  for (char c : name)
    if (c != '_') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// The op of a type: MaxPooling is max_pooling, ReLU is relu; ops differ in their letters.
std::string op_of(const std::string& type) {
  static const std::map<std::string, std::string> ops = [] {
    std::map<std::string, std::string> all;
    for (const std::string& op : rule_names()) all[letters(op)] = op;
    return all;
  }();
  const auto found = ops.find(letters(type));
  if (found == ops.end()) throw ValueError("C++ has no rule for functions of this type");
  return found->second;
}

// The arguments of a function; what its message does not have is zero, or none if it is a shape.
AttributeMap attributes_of(const ProtoMessage& function, const std::string& type) {
  AttributeMap out;
  const std::string wanted = type + "Parameter";
  for (const MessageRow& field : rows_of("Function")) {
    if (field.type != wanted) continue;
    static const ProtoMessage empty;
    const auto given = function.messages(field.name);
    const ProtoMessage& arguments = given.empty() ? empty : *given[0];
    for (const MessageRow& row : rows_of(wanted)) {
      Attribute& a = out[row.name];
      if (row.type == "Shape") {
        if (const auto shape = arguments.messages(row.name); !shape.empty())
          a = shape[0]->integers("dim");
      } else if (row.label == "repeated" && row.type == "int64") {
        a = arguments.integers(row.name);
      } else if (row.label == "repeated") {
        std::vector<double> numbers;
        if (const auto found = arguments.fields.find(row.name); found != arguments.fields.end())
          for (const ProtoMessage::Item& item : found->second) numbers.push_back(item.number);
        a = numbers;
      } else if (row.type == "bool") {
        a = arguments.integer(row.name) != 0;
      } else if (row.type == "string") {
        a = arguments.text(row.name);
      } else if (row.type == "float" || row.type == "double") {
        a = arguments.item(row.name).number;
      } else {
        a = arguments.integer(row.name);
      }
    }
  }
  return out;
}

// Counts axes from the front, and finds the size of a new shape that -1 stands for.
void resolve(const std::string& op, const Spec& x, AttributeMap& attributes) {
  for (auto& [name, value] : attributes) {
    if (name != "axis" && name != "axes") continue;
    auto* one = std::get_if<int64_t>(&value);
    if (one && *one < 0 && op != "stack" && op != "broadcast_to") *one += x.rank();
    if (auto* many = std::get_if<std::vector<int64_t>>(&value))
      for (int64_t& axis : *many) axis += axis < 0 ? x.rank() : 0;
  }
  if (op != "reshape") return;
  auto* shape = std::get_if<std::vector<int64_t>>(&attributes.at("shape"));
  if (!shape || std::count(shape->begin(), shape->end(), -1) != 1) return;
  double rest = 1;
  for (int64_t n : *shape) rest *= n == -1 ? 1.0 : static_cast<double>(n);
  if (rest >= 1 && rest < 0x1p40)
    *std::find(shape->begin(), shape->end(), -1) = x.size() / static_cast<int64_t>(rest);
}

class Builder {
 public:
  Builder(const ProtoMessage& network, const std::map<std::string, Spec>& parameters,
          std::map<std::string, uint64_t>& streams)
      : parameters_(parameters), streams_(streams) {
    batch_ = network.integer("batch_size");
    for (const ProtoMessage* v : network.messages("variable")) {
      const auto shape = v->messages("shape");
      Shape sizes = shape.empty() ? Shape{} : shape[0]->integers("dim");
      double elements = 1;
      for (int64_t& n : sizes) {
        if (n == -1) n = batch_;
        if (n < 0 || n > INT32_MAX ||
            (elements *= static_cast<double>(std::max<int64_t>(n, 1))) > 0x1p40)
          throw ValueError("the shape of '" + v->text("name") + "' is impossible");
      }
      shapes_[v->text("name")] = {sizes, DType::f32, Layout::plain};
      if (v->text("type") == "Parameter") is_parameter_.insert(v->text("name"));
    }
    for (const ProtoMessage* f : network.messages("function"))
      for (const std::string& y : f->texts("output"))
        if (!maker_.emplace(y, f).second)
          throw ValueError("'" + y + "' is computed by two functions");
  }

  ProgramData program(const std::vector<std::string>& inputs,
                      const std::vector<std::string>& outputs) {
    for (const std::string& x : inputs) given(x);
    for (const std::string& y : outputs) {
      if (!maker_.count(y)) throw ValueError("no function computes the output '" + y + "'");
      compute(y);
      data_.outputs.emplace_back(y, numbers_.at(y));
      data_.kept.push_back(numbers_.at(y));
    }
    return std::move(data_);
  }

 private:
  int new_value(const Spec& spec) {
    ProgramValue v;
    v.spec = spec, v.root = static_cast<int>(data_.values.size());
    data_.values.push_back(v);
    return v.root;
  }

  ProgramValue& value(int i) { return data_.values[static_cast<size_t>(i)]; }

  int given(const std::string& name) {
    if (const auto known = numbers_.find(name); known != numbers_.end()) return known->second;
    const auto shape = shapes_.find(name);
    if (shape == shapes_.end()) throw ValueError("there is no variable '" + name + "'");
    const int n = new_value(shape->second);
    value(n).name = name, value(n).role = ProgramValue::Role::input;
    if (is_parameter_.count(name)) {
      const auto stored = parameters_.find(name);
      if (stored == parameters_.end()) throw ValueError("there is no parameter '" + name + "'");
      value(n).spec = stored->second, value(n).role = ProgramValue::Role::parameter;
    }
    return numbers_[name] = n;
  }

  // Adds the functions that a variable depends on.
  void compute(const std::string& name) {
    std::vector<std::pair<const ProtoMessage*, bool>> todo;
    const auto enter = [&](const std::string& x) {
      const auto maker = maker_.find(x);
      if (maker != maker_.end() && !numbers_.count(x)) todo.emplace_back(maker->second, false);
    };
    enter(name);
    while (!todo.empty()) {
      auto& [function, ready] = todo.back();
      if (done_.count(function)) {
        todo.pop_back();
      } else if (ready) {
        add(*function);
        done_.insert(function), open_.erase(function);
        todo.pop_back();
      } else {
        ready = true;
        const ProtoMessage* f = function;
        if (!open_.insert(f).second) throw ValueError("its functions depend on each other");
        for (const std::string& x : f->texts("input")) {
          const auto maker = maker_.find(x);
          if (maker != maker_.end() && open_.count(maker->second))
            throw ValueError("its functions depend on each other");
          enter(x);
        }
      }
    }
    given(name);
  }

  void add(const ProtoMessage& function) {
    const std::string& type = function.text("type");
    try {
      add(function, op_of(type), type);
    } catch (const std::exception& e) {
      throw ValueError("function '" + function.text("name") + "' (" + type + "): " + e.what());
    }
  }

  void add(const ProtoMessage& function, const std::string& op, const std::string& type) {
    ProgramStep step;
    step.op = op, step.label = op + " (" + function.text("name") + ")";
    step.attributes = attributes_of(function, type);
    static const std::set<std::string> made = {"constant", "broadcast", "rand", "randn", "randint"};
    if (made.count(op))  // of the batch size that stands for -1
      for (int64_t& n : std::get<std::vector<int64_t>>(step.attributes.at("shape")))
        if (n == -1) n = batch_;
    if (op == "constant") return add_constant(function, step.attributes);
    const graph::Traits traits = graph::traits_of(op, step.attributes);
    step.view = traits.view;
    std::vector<int> inputs;
    std::vector<Shape> shapes;
    for (const std::string& x : function.texts("input")) {
      int n = given(x);
      const auto& known = rule_inputs(op);
      if (inputs.size() < known.size() && known[inputs.size()].whole &&
          value(n).spec.dtype == DType::f32)
        n = as_whole(n, op + ": " + known[inputs.size()].name);
      inputs.push_back(n);
      shapes.push_back(value(n).spec.shape);
    }
    if (!inputs.empty()) resolve(op, value(inputs[0]).spec, step.attributes);
    const std::vector<Spec> specs = set_inputs(step, inputs, function.text("name"));
    if (step.writes.empty())  // no stream
      for (int w : traits.writes)
        if (step.in.at(static_cast<size_t>(w))) step.writes.push_back(w);
    const std::vector<std::string> names = function.texts("output");
    if (names.size() > specs.size() || names.empty())
      throw ValueError("the file names " + std::to_string(names.size()) +
                       " outputs, the function has " + std::to_string(specs.size()));
    for (size_t i = 0; i < specs.size(); ++i) {
      const int n = new_value(specs[i]);
      step.out.push_back(n);
      if (step.view) value(n).root = value(step.in.at(0)).root;
      if (i >= names.size()) continue;
      const auto said = shapes_.find(names[i]);
      if (said == shapes_.end() || said->second.shape != specs[i].shape)
        throw ValueError("gives " + specs[i].text() + " for '" + names[i] +
                         "', which has another shape in the file");
      numbers_[names[i]] = n;
    }
    if (graph::is_elementwise(op))
      graph::write_code(op, Attributes(step.attributes), std::move(shapes), step);
    data_.steps.push_back(std::move(step));
  }

  // A float32 value as whole numbers, which have this name in messages.
  int as_whole(int n, const std::string& what) {
    ProgramStep cast;
    cast.op = cast.label = "cast";
    cast.attributes = {{"dtype", std::string(name_of(DType::i64))}, {"whole", what}};
    Spec spec = value(n).spec;
    spec.dtype = DType::i64;
    cast.in = {n}, cast.out = {new_value(spec)};
    data_.steps.push_back(cast);
    return cast.out[0];
  }

  // Sets the inputs of a step, and returns what it gives. Files do not say which of the optional
  // inputs they leave out: the first choice is taken that agrees with the arguments and fits.
  std::vector<Spec> set_inputs(ProgramStep& step, const std::vector<int>& inputs,
                               const std::string& function) {
    std::vector<RuleInput> all = rule_inputs(step.op);
    int stream = 0;
    if (!all.empty() && all.back().name == "rng") {
      if (!all.back().optional || std::get<bool>(step.attributes.at("training")))
        stream = new_stream(step, function);
      all.pop_back();
    }
    if (!all.empty() && all.back().variadic) all.resize(inputs.size(), all.back());
    const auto required = static_cast<size_t>(
        std::count_if(all.begin(), all.end(), [](const RuleInput& x) { return !x.optional; }));
    if (inputs.size() < required || inputs.size() > all.size())
      throw ValueError("the file names " + std::to_string(inputs.size()) +
                       " inputs, the function has " + std::to_string(all.size()));
    std::vector<bool> kept(all.size() - required);
    std::fill_n(kept.begin(), inputs.size() - required, true);
    std::string problem;
    do {
      step.in.clear();
      Signature s;
      bool agrees = true;
      for (size_t i = 0, n = 0, o = 0; i < all.size(); ++i) {
        const bool there = !all[i].optional || kept[o++];
        step.in.push_back(there ? inputs[n++] : 0);
        s.in.push_back(there ? value(step.in.back()).spec : Spec{}), s.in_given.push_back(there);
        const char* flag = all[i].name == "beta" ? "no_bias" : "no_scale";
        const auto said = step.attributes.find(flag);
        if ((all[i].name == "beta" || all[i].name == "gamma") && said != step.attributes.end())
          agrees = agrees && said->second == Attribute(!there);
      }
      if (stream) {
        step.writes = {static_cast<int>(step.in.size())};
        step.in.push_back(stream);
        s.in.push_back(value(stream).spec), s.in_given.push_back(true);
      }
      if (!agrees) continue;
      s.attributes = Attributes(step.attributes);
      try {
        return infer(step.op, s);
      } catch (const ValueError& e) {
        if (problem.empty()) problem = e.what();
      }
    } while (std::prev_permutation(kept.begin(), kept.end()));
    throw ValueError(problem.empty() ? "its inputs do not agree with no_bias and no_scale"
                                     : problem);
  }

  // The state of a stream of random numbers, which goes on from run to run.
  int new_stream(const ProgramStep& step, const std::string& function) {
    const int n = new_value({{2}, DType::u64, Layout::plain});
    value(n).role = ProgramValue::Role::state;
    value(n).name = "random numbers of " + function;
    const auto seed = step.attributes.find("seed");
    auto key = seed == step.attributes.end() ? -1 : std::get<int64_t>(seed->second);
    if (key < 0) key = static_cast<int64_t>(std::random_device{}());
    streams_.emplace(value(n).name, static_cast<uint64_t>(key));
    return n;
  }

  void add_constant(const ProtoMessage& function, const AttributeMap& attributes) {
    Signature s;
    s.attributes = Attributes(attributes);
    const int n = new_value(infer("constant", s).at(0));
    value(n).role = ProgramValue::Role::constant;
    value(n).filled = true, value(n).fill = s.attributes.number("val");
    for (const std::string& y : function.texts("output")) numbers_[y] = n;
  }

  const std::map<std::string, Spec>& parameters_;
  std::map<std::string, uint64_t>& streams_;
  int64_t batch_;
  std::map<std::string, Spec> shapes_;
  std::set<std::string> is_parameter_;
  std::map<std::string, const ProtoMessage*> maker_;
  std::set<const ProtoMessage*> done_, open_;
  std::map<std::string, int> numbers_;
  ProgramData data_;
};

std::vector<std::string> names_of(const ProtoMessage& executor, const char* field) {
  std::vector<std::string> out;
  for (const ProtoMessage* m : executor.messages(field)) out.push_back(m->text("variable_name"));
  return out;
}

// Variables that no function gives, and those that none takes.
void find_ends(const ProtoMessage& network, std::vector<std::string>& inputs,
               std::vector<std::string>& outputs) {
  std::set<std::string> made, read;
  for (const ProtoMessage* f : network.messages("function")) {
    for (const std::string& y : f->texts("output")) made.insert(y);
    for (const std::string& x : f->texts("input")) read.insert(x);
  }
  for (const ProtoMessage* v : network.messages("variable")) {
    const std::string& name = v->text("name");
    if (v->text("type") == "Parameter") continue;
    if (!made.count(name) && read.count(name)) inputs.push_back(name);
    if (made.count(name) && !read.count(name)) outputs.push_back(name);
  }
}

}  // namespace

std::vector<std::pair<std::string, ProgramData>> programs_of(
    const ProtoMessage& file, const std::map<std::string, Spec>& parameters,
    const std::string& only, std::map<std::string, uint64_t>& streams) {
  std::map<std::string, const ProtoMessage*> networks;
  for (const ProtoMessage* n : file.messages("network")) networks[n->text("name")] = n;
  std::vector<std::pair<std::string, ProgramData>> found;
  const auto add = [&](const std::string& name, const std::string& network,
                       std::vector<std::string> inputs, std::vector<std::string> outputs) {
    const auto of = networks.find(network);
    if (of == networks.end()) throw ValueError("there is no network '" + network + "'");
    try {
      ProtoMessage unrolled;
      if (has_loops(*of->second)) unrolled = without_loops(*of->second);
      const ProtoMessage& whole = unrolled.fields.empty() ? *of->second : unrolled;
      if (outputs.empty()) find_ends(whole, inputs, outputs);
      found.emplace_back(name, Builder(whole, parameters, streams).program(inputs, outputs));
    } catch (const ValueError& e) {
      throw ValueError("network '" + network + "': " + e.what());
    }
  };
  const auto wanted = [&](const std::string& name) { return only.empty() || name == only; };
  for (const ProtoMessage* e : file.messages("executor"))
    if (wanted(e->text("name")))
      add(e->text("name"), e->text("network_name"), names_of(*e, "data_variable"),
          names_of(*e, "output_variable"));
  const bool no_executor = found.empty();
  for (const auto& [name, network] : networks)
    if (no_executor && wanted(name)) add(name, name, {}, {});
  if (found.empty())
    throw ValueError(only.empty() ? "it has no network"
                                  : "it has no executor and no network '" + only + "'");
  return found;
}

}  // namespace nnl

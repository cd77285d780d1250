// SPDX-License-Identifier: Apache-2.0
#include "network.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "../graph/elementwise.h"
#include "../graph/graph.h"
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
AttributeMap attributes_of(const Message& function, const std::string& type) {
  AttributeMap out;
  const std::string wanted = type + "Parameter";
  for (const MessageRow& field : rows_of("Function")) {
    if (field.type != wanted) continue;
    static const Message empty;
    const auto given = function.messages(field.name);
    const Message& arguments = given.empty() ? empty : *given[0];
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
          for (const Message::Item& item : found->second) numbers.push_back(item.number);
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
    if (one && *one < 0 && op != "stack") *one += x.rank();
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
  Builder(const Message& network, const std::map<std::string, Spec>& parameters)
      : network_(network), parameters_(parameters) {
    if (network.has("repeat_info")) throw ValueError("it has loops, which C++ does not unroll");
    batch_ = network.integer("batch_size");
    for (const Message* v : network.messages("variable")) {
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
    for (const Message* f : network.messages("function"))
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
    std::vector<std::pair<const Message*, bool>> todo;
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
        const Message* f = function;
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

  void add(const Message& function) {
    const std::string& type = function.text("type");
    try {
      add(function, op_of(type), type);
    } catch (const std::exception& e) {
      throw ValueError("function '" + function.text("name") + "' (" + type + "): " + e.what());
    }
  }

  void add(const Message& function, const std::string& op, const std::string& type) {
    if (function.has("repeat_param") || function.has("recurrent_param") ||
        function.has("repeat_id"))
      throw ValueError("it is in a loop, which C++ does not unroll");
    ProgramStep step;
    step.op = op, step.label = op + " (" + function.text("name") + ")";
    step.attributes = attributes_of(function, type);
    if (op == "constant" || op == "broadcast")  // of the batch size that stands for -1
      for (int64_t& n : std::get<std::vector<int64_t>>(step.attributes.at("shape")))
        if (n == -1) n = batch_;
    if (op == "constant") return add_constant(function, step.attributes);
    const graph::Traits traits = graph::traits_of(op, step.attributes);
    step.view = traits.view, step.writes = traits.writes;
    Signature s;
    std::vector<Shape> shapes;
    for (const std::string& x : function.texts("input")) {
      int n = given(x);
      if (static_cast<int>(s.in.size()) == traits.integer && value(n).spec.dtype == DType::f32) {
        ProgramStep cast = graph::cast_step(DType::i64, op, x.c_str());
        Spec spec = value(n).spec;
        spec.dtype = DType::i64;
        cast.in = {n}, cast.out = {n = new_value(spec)};
        data_.steps.push_back(cast);
      }
      step.in.push_back(n);
      s.in.push_back(value(n).spec), s.in_given.push_back(true);
      shapes.push_back(value(n).spec.shape);
    }
    if (!s.in.empty()) resolve(op, s.in[0], step.attributes);
    s.attributes = Attributes(step.attributes);
    for (int w : step.writes)
      if (static_cast<size_t>(w) >= step.in.size()) throw ValueError("an input is missing");
    const std::vector<Spec> specs = infer(op, s);
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
    if (graph::is_elementwise(op)) graph::write_code(op, s.attributes, std::move(shapes), step);
    data_.steps.push_back(std::move(step));
  }

  void add_constant(const Message& function, const AttributeMap& attributes) {
    Signature s;
    s.attributes = Attributes(attributes);
    const int n = new_value(infer("constant", s).at(0));
    value(n).role = ProgramValue::Role::constant;
    value(n).filled = true, value(n).fill = s.attributes.number("val");
    for (const std::string& y : function.texts("output")) numbers_[y] = n;
  }

  const Message& network_;
  const std::map<std::string, Spec>& parameters_;
  int64_t batch_;
  std::map<std::string, Spec> shapes_;
  std::set<std::string> is_parameter_;
  std::map<std::string, const Message*> maker_;
  std::set<const Message*> done_, open_;
  std::map<std::string, int> numbers_;
  ProgramData data_;
};

std::vector<std::string> names_of(const Message& executor, const char* field) {
  std::vector<std::string> out;
  for (const Message* m : executor.messages(field)) out.push_back(m->text("variable_name"));
  return out;
}

// Variables that no function gives, and those that none takes.
void find_ends(const Message& network, std::vector<std::string>& inputs,
               std::vector<std::string>& outputs) {
  std::set<std::string> made, read;
  for (const Message* f : network.messages("function")) {
    for (const std::string& y : f->texts("output")) made.insert(y);
    for (const std::string& x : f->texts("input")) read.insert(x);
  }
  for (const Message* v : network.messages("variable")) {
    const std::string& name = v->text("name");
    if (v->text("type") == "Parameter") continue;
    if (!made.count(name) && read.count(name)) inputs.push_back(name);
    if (made.count(name) && !read.count(name)) outputs.push_back(name);
  }
}

}  // namespace

std::vector<std::pair<std::string, ProgramData>> programs_of(
    const Message& file, const std::map<std::string, Spec>& parameters) {
  std::map<std::string, const Message*> networks;
  for (const Message* n : file.messages("network")) networks[n->text("name")] = n;
  std::vector<std::pair<std::string, ProgramData>> found;
  const auto add = [&](const std::string& name, const std::string& network,
                       std::vector<std::string> inputs, std::vector<std::string> outputs) {
    const auto of = networks.find(network);
    if (of == networks.end()) throw ValueError("there is no network '" + network + "'");
    try {
      if (outputs.empty()) find_ends(*of->second, inputs, outputs);
      found.emplace_back(name, Builder(*of->second, parameters).program(inputs, outputs));
    } catch (const ValueError& e) {
      throw ValueError("network '" + network + "': " + e.what());
    }
  };
  for (const Message* e : file.messages("executor"))
    add(e->text("name"), e->text("network_name"), names_of(*e, "data_variable"),
        names_of(*e, "output_variable"));
  if (found.empty())
    for (const auto& [name, network] : networks) add(name, name, {}, {});
  return found;
}

}  // namespace nnl

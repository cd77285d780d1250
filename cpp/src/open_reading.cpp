// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <utility>

#include "open_program.h"

namespace nnl {
namespace {

using Kind = SizeOp::Kind;

constexpr int deepest = 64;
constexpr const char* shapes_seen = "elementwise.shapes";
constexpr const char* constants = "elementwise.constants";

constexpr std::array<std::pair<const char*, Kind>, 7> operators = {{{"+", Kind::add},
                                                                    {"-", Kind::subtract},
                                                                    {"*", Kind::multiply},
                                                                    {"//", Kind::floor_divide},
                                                                    {"min", Kind::least},
                                                                    {"max", Kind::greatest},
                                                                    {"/", Kind::divide}}};

class Reader {
 public:
  explicit Reader(const ProgramData& program) : program_(program) {}

  void add(const Json& json, int depth) {
    if (json.is_integer()) return add({Kind::whole, json.integer()});
    if (std::holds_alternative<double>(json.value)) return add({Kind::real, 0, 0, json.number()});
    if (json.is_text()) return add({Kind::dim, dim(json.text())});
    const Json::Array& items = json.array();
    if (items.size() == 2) return add({Kind::axis, value(items[0].integer()), axis(items)});
    if (items.size() != 3) throw ValueError("a size is no expression");
    if (depth >= deepest) throw ValueError("an expression of sizes is nested too deep");
    const std::string& sign = items[0].text();
    const auto found = std::find_if(operators.begin(), operators.end(),
                                    [&](const auto& o) { return sign == o.first; });
    if (found == operators.end())
      throw ValueError("an expression of sizes has the operator '" + sign + "'");
    add(items[1], depth + 1);
    add(items[2], depth + 1);
    add({found->second});
  }

  SizeExpression done;

 private:
  void add(SizeOp op) { done.push_back(op); }

  int64_t dim(const std::string& name) const {
    const auto& dims = program_.dims;
    const auto found =
        std::find_if(dims.begin(), dims.end(), [&](const OpenSize& d) { return d.name == name; });
    if (found == dims.end()) throw ValueError("there is no open size '" + name + "'");
    return found - dims.begin();
  }

  int64_t value(int64_t number) const {
    if (number <= 0 || number >= static_cast<int64_t>(program_.values.size()))
      throw ValueError("a size is that of value " + std::to_string(number) +
                       ", which is not there");
    return number;
  }

  int64_t axis(const Json::Array& items) const {
    const auto i = static_cast<size_t>(items[0].integer());
    const int64_t axis = items[1].integer(), rank = program_.values[i].spec.rank();
    if (axis < 0 || axis >= rank)
      throw ValueError("a size is that of axis " + std::to_string(axis) + " of value " +
                       std::to_string(i) + ", which has " + std::to_string(rank));
    return axis;
  }

  const ProgramData& program_;
};

// A number of a template: {"size": expression}, or itself.
SizeExpression number_of(const Json& json, const ProgramData& program) {
  if (json.is_object()) {
    if (const Json* size = json.find("size")) return expression_of(*size, program);
    return {{Kind::real, 0, 0, std::stod(json.at("float").text())}};
  }
  if (json.is_integer()) return {{Kind::whole, json.integer()}};
  return {{Kind::real, 0, 0, json.number()}};
}

OpenAttribute attribute_of(const std::string& name, const Json& json, const ProgramData& program) {
  OpenAttribute found;
  found.name = name, found.list = json.is_array();
  if (!found.list) {
    found.numbers.push_back(number_of(json, program));
  } else {
    for (const Json& item : json.array()) found.numbers.push_back(number_of(item, program));
  }
  return found;
}

}  // namespace

SizeExpression expression_of(const Json& json, const ProgramData& program) {
  Reader reader(program);
  reader.add(json, 0);
  return std::move(reader.done);
}

void read_dims(const Json& json, ProgramData& program) {
  for (const auto& [name, numbers] : json.object()) {
    const Json::Array& n = numbers.array();
    OpenSize d;
    d.name = name;
    const auto take = [&](size_t i, int64_t lowest) {
      const int64_t found = n.at(i).integer();
      if (found < lowest || found > OpenSize::largest)
        throw ValueError("the open size '" + name + "' has the number " + std::to_string(found));
      return found;
    };
    if (n.size() != 4) throw ValueError("the open size '" + name + "' has no range");
    d.example = take(0, 0), d.least = take(1, 0), d.multiple = take(3, 1);
    if (!n[2].is_null()) d.greatest = take(2, 1);
    for (const OpenSize& other : program.dims)
      if (other.name == name) throw ValueError("the open size '" + name + "' is there twice");
    program.dims.push_back(std::move(d));
  }
}

void read_open(const Json& json, const ProgramData& program, ProgramStep& step) {
  for (const auto& [name, item] : json.object()) {
    if (name == shapes_seen) {
      if (item.array().size() != step.shapes.size() || !step.open_seen.empty())
        throw ValueError(step.op + " has other open shapes than shapes");
      for (const Json& shape : item.array())
        step.open_seen.push_back(attribute_of(name, shape, program));
      continue;
    }
    if (name == constants) {
      if (item.array().size() != step.constants.size() || !step.open_constants.empty())
        throw ValueError(step.op + " has other open constants than constants");
      step.open_constants = attribute_of(name, item, program).numbers;
      continue;
    }
    if (!step.attributes.count(name))
      throw ValueError(step.op + " has no attribute '" + name + "' that could be open");
    step.open.push_back(attribute_of(name, item, program));
  }
}

}  // namespace nnl

// SPDX-License-Identifier: Apache-2.0
// The attributes of an op by name, as its Python definition declares them.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "nnl/errors.h"

namespace nnl {

// std::monostate is Python's None.
using Attribute = std::variant<std::monostate, bool, int64_t, double, std::string,
                               std::vector<int64_t>, std::vector<double>>;

class Attributes {
 public:
  using Map = std::unordered_map<std::string, Attribute>;

  Attributes() = default;
  explicit Attributes(Map values) : own_(std::move(values)) {}
  // Copies have values of their own, also of attributes that are others'.
  Attributes(const Attributes& other) : own_(other.values()), asked_(other.asked_) {}
  Attributes(Attributes&&) = default;
  Attributes& operator=(Attributes other) {
    own_ = std::move(other.own_), others_ = other.others_, asked_ = other.asked_;
    return *this;
  }

  // Those of a map that lives longer and stays as it is: nothing is copied.
  static Attributes of(const Map& values) {
    Attributes found;
    found.others_ = &values;
    return found;
  }

  const Map& values() const { return others_ ? *others_ : own_; }

  bool has(const std::string& name) const {
    if (asked_) asked_->insert(name);
    auto it = values().find(name);
    return it != values().end() && !std::holds_alternative<std::monostate>(it->second);
  }

  bool flag(const std::string& name) const { return get<bool>(name); }
  const std::string& text(const std::string& name) const { return get<std::string>(name); }
  int64_t integer(const std::string& name) const { return get<int64_t>(name); }
  // A number declared as float in Python may arrive as an int.
  double number(const std::string& name) const {
    const Attribute& value = at(name);
    if (auto* i = std::get_if<int64_t>(&value)) return static_cast<double>(*i);
    return get<double>(name);
  }
  const std::vector<int64_t>& integers(const std::string& name) const {
    return get<std::vector<int64_t>>(name);
  }
  // Numbers declared as float may all arrive as ints.
  std::vector<double> numbers(const std::string& name) const {
    if (auto* i = std::get_if<std::vector<int64_t>>(&at(name))) return {i->begin(), i->end()};
    return get<std::vector<double>>(name);
  }

  // Adds the name of every attribute that is asked for from now on, for the tests.
  void note(std::set<std::string>* asked) { asked_ = asked; }

 private:
  const Attribute& at(const std::string& name) const {
    if (asked_) asked_->insert(name);
    auto it = values().find(name);
    if (it == values().end()) throw ValueError("attribute '" + name + "' is missing");
    return it->second;
  }
  template <class T>
  const T& get(const std::string& name) const {
    auto* value = std::get_if<T>(&at(name));
    if (!value) throw ValueError("attribute '" + name + "' has another type");
    return *value;
  }

  Map own_;
  const Map* others_ = nullptr;
  std::set<std::string>* asked_ = nullptr;
};

}  // namespace nnl

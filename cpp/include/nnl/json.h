// SPDX-License-Identifier: Apache-2.0
// JSON, read: what the header of a file and the programs in it are written in.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "nnl/errors.h"

namespace nnl {

class NNL_API Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;  // in the order of the text

  // ValueError: the text is no JSON, or nested more than 64 deep.
  static Json parse(std::string_view text);

  bool is_null() const { return std::holds_alternative<std::monostate>(value); }
  bool is_text() const { return std::holds_alternative<std::string>(value); }
  bool is_array() const { return std::holds_alternative<Array>(value); }
  bool is_object() const { return std::holds_alternative<Object>(value); }
  bool is_integer() const { return std::holds_alternative<int64_t>(value); }

  // The value as one type. ValueError: it is of another one.
  bool flag() const;
  int64_t integer() const;
  double number() const;
  const std::string& text() const;
  const Array& array() const;
  const Object& object() const;
  std::vector<int64_t> integers() const;

  // The entry of an object; null where there is none. ValueError: this is no object.
  const Json* find(const std::string& name) const;
  // The same. ValueError: there is none.
  const Json& at(const std::string& name) const;

  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value;
};

}  // namespace nnl

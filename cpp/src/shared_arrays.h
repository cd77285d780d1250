// SPDX-License-Identifier: Apache-2.0
// Arrays that several programs share, each in the orders and types that these want them in.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

#include "nnl/plan.h"
#include "nnl/spec.h"

namespace nnl {

// One array in one order and type. Its values are those of the array's version that it names.
struct Form {
  Spec spec;
  void* data;
  uint64_t version;
};

class SharedArray {
 public:
  // Over memory in the plain order, which is its first form.
  SharedArray(const Spec& spec, void* data) : forms_{{spec, data, 1}} {}

  Form& plain() { return forms_.front(); }
  uint64_t version() const { return version_; }

  // The form of a spec; made of memory of its own, not filled, where there is none.
  Form& form(const Spec& spec);

  // Gives a form the present values.
  void refresh(Form& form);

  // Says that a form now has, or is about to have, the values of a new version.
  void written(Form& form, uint64_t version) { form.version = version_ = version; }

 private:
  std::deque<Form> forms_;  // a deque: they stay where they are
  std::vector<std::unique_ptr<Memory>> memories_;
  uint64_t version_ = 1;
};

// Who reads arrays holds the mutex shared, who writes any or makes forms holds it alone.
struct SharedArrays {
  std::map<std::string, SharedArray> by_name;
  uint64_t version = 1;  // the largest of any array
  std::shared_mutex mutex;
};

}  // namespace nnl

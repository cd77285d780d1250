// SPDX-License-Identifier: Apache-2.0
// Networks as graphs: nodes are ops with attributes, edges are values.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "nnl/functions.h"
#include "nnl/plan.h"
#include "nnl/program.h"

namespace nnl::graph {

struct Storage {
  Spec spec;
  std::shared_ptr<Memory> memory;  // null: not allocated yet
  bool zero = true;                // lazily: nobody has written it
  bool value = true;               // false for results that no forward() has made

  static Storage& of(const Array& a) { return *a.storage_; }
  void* allocated();          // the memory, for somebody who writes it
  void* allocated(DType as);  // the same, for elements of a type whatever it had before
  void* readable();           // the memory, zeros if nobody has written it
};

struct Node;
class Compiled;

struct Value {
  ~Value();
  Spec spec;  // what functions were built for; the array of a leaf may have another element type
  Array data, grad;
  bool need_grad = false, persistent = false;
  std::shared_ptr<Node> node;  // null: a leaf
  size_t index = 0;            // of node's outputs
  size_t uses = 0;             // as inputs of nodes
  std::vector<std::shared_ptr<Compiled>> compiled;
  Compiled* latest = nullptr;  // of them, what forward() has run
};
using ValuePtr = std::shared_ptr<Value>;

struct Node {
  ~Node();
  std::string op;
  AttributeMap attributes;
  std::vector<ValuePtr> in;  // null: left out
  std::vector<Spec> out;
  std::vector<Array> data;  // of the outputs
  std::vector<std::weak_ptr<Value>> values;
  bool need_grad = false;

  Variable output(const std::shared_ptr<Node>& self, size_t i);
};

// What is known of an op besides its shape rule.
struct Traits {
  bool view = false;  // the output is the memory of the input
  bool differentiable = true;
  std::vector<int> writes;  // inputs that it changes, if they are there
};
Traits traits_of(const std::string& op, const AttributeMap& attributes);

// The first output of an op.
Variable apply1(const std::string& op, AttributeMap attributes,
                const std::vector<Variable>& inputs);

// Functions that are applied while one lives record, and run now only if told so.
class Mode {
 public:
  Mode(bool run_now, bool need_grad);
  ~Mode();
  Mode(const Mode&) = delete;
  Mode& operator=(const Mode&) = delete;

 private:
  bool run_before_, grad_before_;
};

// A step of a program, without its values. What element-wise ops do is written out.
ProgramStep step_of(const Node& node);

// The type in which a node reads input i, whose array has the type `actual`.
DType read_as(const Node& node, size_t i, DType actual);
ProgramStep cast_step(const Node& node, size_t i, DType to);

// Nodes below y, in an order in which they can run.
std::vector<std::shared_ptr<Node>> nodes_below(const ValuePtr& y);

// Gradients of y, weighted by gy, of leaves that need one and of persistent values.
std::vector<std::pair<ValuePtr, Variable>> gradients(const Variable& y, const Variable& gy);

void run_now(const std::shared_ptr<Node>& node);

}  // namespace nnl::graph

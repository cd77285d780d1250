// SPDX-License-Identifier: Apache-2.0
// A graph as a program: what forward() and backward() of a Variable run.
#pragma once
#include <map>

#include "graph.h"
#include "nnl/runner.h"

namespace nnl::graph {

class Compiled {
 public:
  // Args: backward: whether the program has a second part, that of the gradients. held: whether
  // all values that somebody holds a Variable of are kept, not only the persistent ones.
  Compiled(const ValuePtr& y, bool backward, bool held);

  bool backward() const { return has_backward_; }
  bool held() const { return held_; }
  // Whether types and flags are still those it was made for.
  bool fits() const;

  void run_forward();
  // Starts from `seed`, and puts the gradients where they belong.
  void run_backward(const Array& seed);

 private:
  struct Leaf {
    int number;
    ValuePtr value;
    DType type;
    bool need_grad;
  };
  struct Result {
    int number;
    Array array;
    DType type;
  };
  struct Gradient {
    int number;
    Array array;
    bool added;  // to what is there; otherwise it replaces that
    bool again;  // a leaf before it has the same array
    std::unique_ptr<Memory> scratch;
    bool adds = false;  // from scratch, in this run
  };
  using Edge = std::pair<const Node*, size_t>;

  void add_nodes(const ValuePtr& y, bool second);
  void add_node(const Node& node, bool second);
  void add_gradients(const ValuePtr& y);
  int new_value(const Spec& spec);
  int number_of(const ValuePtr& v);
  int leaf_of(const ValuePtr& v);
  int result_of(int number, bool second);
  bool is_kept(const Node& node, size_t i) const;
  void bind_leaves(const char* function);

  ProgramData program_;
  std::map<const Value*, int> leaf_numbers_;
  std::map<Edge, int> numbers_;
  std::map<std::pair<int, DType>, int> casts_;
  std::vector<bool> direct_;  // of values: made by a step into memory of its own, free to be bound
  std::vector<Leaf> leaves_;
  std::vector<Result> results_;
  std::vector<Gradient> gradients_;
  std::vector<std::pair<std::weak_ptr<Value>, bool>> persistent_;
  const Value* root_;
  int seed_ = 0;
  bool has_backward_, held_;
  std::unique_ptr<Runner> runner_;
};

}  // namespace nnl::graph

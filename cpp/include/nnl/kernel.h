// SPDX-License-Identifier: Apache-2.0
// Kernel: one op fixed to its attributes and specs. The registry: kernels by the name of their op.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nnl/attributes.h"
#include "nnl/spec.h"

namespace nnl {

// What a kernel is set up for. Inputs that are left out have in_given false and an empty spec.
struct Signature {
  Attributes attributes;
  std::vector<Spec> in;
  std::vector<bool> in_given;
  std::vector<Spec> out;

  bool given(size_t i) const { return i < in.size() && in_given[i]; }
};

// The memory of one run: buffers in the order of the op's inputs (null where left out) and outputs.
struct Buffers {
  void* const* in;
  void* const* out;
  void* workspace;

  template <class T>
  const T* input(size_t i) const {
    return static_cast<const T*>(in[i]);
  }
  template <class T>
  T* written_input(size_t i) const {  // for ops that write state
    return static_cast<T*>(in[i]);
  }
  template <class T>
  T* output(size_t i = 0) const {
    return static_cast<T*>(out[i]);
  }
};

class NNL_API Kernel {
 public:
  virtual ~Kernel() = default;

  // Allocates nothing. Throws ValueError for data that the op does not take (a label out of range),
  // before anything is written.
  virtual void run(const Buffers& buffers) = 0;

  // Bytes of scratch memory wanted in Buffers::workspace, 64-byte aligned.
  virtual size_t workspace() const { return 0; }

  // Whether output o may lie in the memory of input i: every element of i is read before its place
  // in o is written, and both have the same bytes.
  virtual bool may_overwrite(size_t /*o*/, size_t /*i*/) const { return false; }
};

// Returns null to decline (a dtype, a layout, a rank); the next backend is asked then.
using Setup = std::unique_ptr<Kernel> (*)(const Signature&);

// The kernel of an op, or null when there is none or it declines.
NNL_API std::unique_ptr<Kernel> make_kernel(const std::string& op, const Signature& signature);

// Names of all ops that have a kernel, sorted.
NNL_API std::vector<std::string> kernel_names();

// What the kernels of an op can do besides what its definition says: passes ask before they make
// one. Inputs and outputs by position.
struct Abilities {
  std::vector<int> last_in, last_out;    // fastest with these channels-last
  std::vector<int> tiled_in, tiled_out;  // weights that may be in tiles
  bool packs = false;                    // takes weights from pack_convolution
  bool copies = false;  // reads (a product) or writes (an update) copies of weights in bfloat16
  std::vector<std::string> appends;  // ops whose work it does after its own, in one step
  bool adds_halves = false;  // what it adds may have another floating-point type than the result
  int64_t most_rows = 0;     // of input 1, up to which it adds faster than another step; 0: any

  Abilities& last(std::vector<int> in, std::vector<int> out) {
    last_in = std::move(in), last_out = std::move(out);
    return *this;
  }
  Abilities& tiled(std::vector<int> in, std::vector<int> out) {
    tiled_in = std::move(in), tiled_out = std::move(out);
    return *this;
  }
  Abilities& packed() {
    packs = true;
    return *this;
  }
  Abilities& copy() {
    copies = true;
    return *this;
  }
  Abilities& append(std::vector<std::string> ops) {
    appends = std::move(ops);
    return *this;
  }
};

// Those of an op; none of any for an op that says nothing.
NNL_API const Abilities& abilities(const std::string& op);

// Used at namespace scope by the files in src/kernels: `const Registration relu{"relu", setup};`
struct NNL_API Registration {
  Registration(const char* op, Setup setup);
  Registration(const char* op, Setup setup, Abilities abilities);
};

}  // namespace nnl

// SPDX-License-Identifier: Apache-2.0
// fused_elementwise (kernel-only): inputs x..., outputs y... of one shape and layout
//   code, constants  as in nnl/elementwise.h
//   outputs          number of the value that each output is
// Inputs are of any element type but float64 and are converted to float32; they have the rank of
// the outputs (missing leading axes count as 1) and stretch along axes of size 1.
//
// Some outputs may be reduced over axes on the way, if these attributes are given:
//   shape         what the program runs over; outputs that are not reduced have it
//   channels_last whether it runs in that order; default False
//   axes          what is reduced, from the front
//   reductions    for each output: 0 not reduced, 1 sum, 2 largest, 3 smallest (NaN before all)
//   scales        for each output: a factor for the result, 1 / count for a mean; default 1
// A reduced output has the kept axes, or all of them with 1 for the reduced ones.
//
// Every op that has a program is a kernel too: its program alone.
#include <utility>

#include "elementwise_kernel.h"

namespace nnl {
namespace {

std::unique_ptr<Kernel> fused(const Signature& s) {
  const Attributes& a = s.attributes;
  ElementwiseProgram program;
  program.code = a.integers("code");
  program.constants = a.numbers("constants");
  for (const Spec& in : s.in) program.shapes.push_back(in.shape);
  const std::vector<int64_t>& outputs = a.integers("outputs");
  if (outputs.size() != s.out.size())
    throw ValueError("fused_elementwise: outputs has " + std::to_string(outputs.size()) +
                     " numbers for " + std::to_string(s.out.size()) + " arrays");
  if (!a.has("reductions")) return make_elementwise(s, s.out[0], program, outputs);

  Spec space{a.integers("shape")};
  if (a.has("channels_last") && a.flag("channels_last")) space.layout = Layout::channels_last;
  const std::vector<int64_t>& kinds = a.integers("reductions");
  const auto scales = a.has("scales") ? a.numbers("scales") : std::vector<double>(kinds.size(), 1);
  if (kinds.size() != s.out.size() || scales.size() != s.out.size())
    throw ValueError("fused_elementwise: reductions and scales need a number for every output");
  std::vector<Reduced> reductions;
  for (size_t o = 0; o < s.out.size(); ++o) {
    if (kinds[o] < BlockReduction::none || kinds[o] > BlockReduction::smallest)
      throw ValueError("fused_elementwise: unknown reduction " + std::to_string(kinds[o]));
    if (kinds[o] != BlockReduction::none)
      reductions.push_back({o, BlockReduction(space, s.out[o], a.integers("axes"),
                                              BlockReduction::Kind{kinds[o]}, scales[o])});
  }
  return make_elementwise(s, space, program, outputs, std::move(reductions));
}
const Registration registration("fused_elementwise", fused);

// Ops that are kernels by their program. Those that only move data are in other files.
const std::vector<std::string>& single_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = elementwise_names(), kept;
    for (const std::string& name : all)
      if (name != "identity" && name != "unlink" && name != "broadcast" && name != "broadcast_to")
        kept.push_back(name);
    return kept;
  }();
  return names;
}

template <size_t k>
std::unique_ptr<Kernel> single(const Signature& s) {
  if (s.out.size() != 1 || !is_float(s.in[0].dtype) || !is_float(s.out[0].dtype)) return nullptr;
  std::vector<Shape> shapes;
  for (const Spec& in : s.in) shapes.push_back(in.shape);
  auto program = elementwise_program(single_names()[k], s.attributes, shapes);
  const auto result = static_cast<int64_t>(s.in.size() + program->code.size() / 4) - 1;
  return make_elementwise(s, s.out[0], *program, {result});
}

template <size_t... k>
bool register_singles(std::index_sequence<k...>) {
  const std::vector<std::string>& names = single_names();
  if (names.size() > sizeof...(k)) throw ValueError("too many element-wise ops for their table");
  auto add = [&](size_t i, Setup setup) {
    if (i < names.size()) Registration(names[i].c_str(), setup);
  };
  (add(k, single<k>), ...);
  return true;
}
[[maybe_unused]] const bool registered = register_singles(std::make_index_sequence<160>());

}  // namespace
}  // namespace nnl

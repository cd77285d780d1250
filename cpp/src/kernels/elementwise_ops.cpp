// SPDX-License-Identifier: Apache-2.0
// fused_elementwise: inputs x..., outputs y... of one shape and layout
//   code, constants  as in nnl/elementwise.h
//   outputs          number of the value that each output is
//   shapes           of the inputs, one after the other, each of the rank of the outputs, where
//                    they are not those of the arrays
// Inputs are of any element type but float64 and are converted to float32; they have the rank of
// the outputs (missing leading axes count as 1) and stretch along axes of size 1.
//
// Some outputs may be reduced over axes on the way, if these attributes are given:
//   shape         what the program runs over; outputs that are not reduced have it
//   channels_last whether it runs in that order; default False
//   axes          what is reduced, from the front
//   reductions    for each output: 0 not reduced, 1 sum, 2 largest, 3 smallest (NaN before all)
//   scales        for each output: a factor for the result, 1 / count for a mean; default 1
//   least         elements of one sum, of fewer there is no kernel
// A reduced output has the kept axes, or all of them with 1 for the reduced ones.
#include <utility>

#include "elementwise_kernel.h"

namespace nnl {
namespace {

// An empty sequence is one left out.
bool given(const Attributes& a, const char* name) {
  return a.has(name) && !a.numbers(name).empty();
}

std::vector<Shape> shapes_of(const Signature& s) {
  std::vector<Shape> shapes;
  if (!given(s.attributes, "shapes")) {
    for (const Spec& in : s.in) shapes.push_back(in.shape);
    return shapes;
  }
  const std::vector<int64_t>& sizes = s.attributes.integers("shapes");
  const size_t rank = s.in.empty() ? 0 : sizes.size() / s.in.size();
  for (size_t i = 0; i < s.in.size(); ++i) {
    const auto first = sizes.begin() + static_cast<ptrdiff_t>(i * rank);
    shapes.emplace_back(first, first + static_cast<ptrdiff_t>(rank));
    if (Spec{shapes[i]}.size() != s.in[i].size())
      throw ValueError("fused_elementwise: a shape does not have the size of its input");
  }
  return shapes;
}

std::unique_ptr<Kernel> fused(const Signature& s) {
  const Attributes& a = s.attributes;
  ElementwiseProgram program;
  program.code = a.integers("code");
  program.constants = a.numbers("constants");
  program.shapes = shapes_of(s);
  const std::vector<int64_t>& outputs = a.integers("outputs");
  if (outputs.size() != s.out.size())
    throw ValueError("fused_elementwise: outputs has " + std::to_string(outputs.size()) +
                     " numbers for " + std::to_string(s.out.size()) + " arrays");
  if (!given(a, "reductions")) return make_elementwise(s, s.out[0], program, outputs);

  Spec space{a.integers("shape")};
  const bool pixels = space.rank() > 2 && space.size() > space.shape[0] * space.shape[1];
  if (a.has("channels_last") && a.flag("channels_last") && pixels)
    space.layout = Layout::channels_last;
  const std::vector<int64_t>& kinds = a.integers("reductions");
  const auto scales =
      given(a, "scales") ? a.numbers("scales") : std::vector<double>(kinds.size(), 1);
  if (kinds.size() != s.out.size() || scales.size() != s.out.size())
    throw ValueError("fused_elementwise: reductions and scales need a number for every output");
  std::vector<Reduced> reductions;
  for (size_t o = 0; o < s.out.size(); ++o) {
    if (kinds[o] < BlockReduction::none || kinds[o] > BlockReduction::smallest)
      throw ValueError("fused_elementwise: unknown reduction " + std::to_string(kinds[o]));
    if (kinds[o] != BlockReduction::none && a.has("least") &&
        static_cast<double>(a.integer("least")) * static_cast<double>(s.out[o].size()) >
            static_cast<double>(space.size()))
      return nullptr;
    if (kinds[o] != BlockReduction::none)
      reductions.push_back({o, BlockReduction(space, s.out[o], a.integers("axes"),
                                              BlockReduction::Kind{kinds[o]}, scales[o])});
  }
  return make_elementwise(s, space, program, outputs, std::move(reductions));
}
const Registration registration("fused_elementwise", fused);

}  // namespace
}  // namespace nnl

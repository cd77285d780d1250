// SPDX-License-Identifier: Apache-2.0
// Files of arrays in HDF5, as plain as h5py writes them by default.
#pragma once
#include <string>
#include <vector>

#include "nnl/parameter_files.h"

namespace nnl {

struct Hdf5File {
  std::string structure;         // the file up to the first array
  std::vector<uint64_t> starts;  // where the arrays belong, in their order; multiples of 64
  uint64_t size;                 // of the whole file
};

// Names are paths: what stands before a slash is a group. With each array its index and need_grad,
// as NNabla wants them. ValueError: a name is empty, there twice, or a group and an array.
// Source: HDF5 File Format Specification Version 1.1, sections II to IV.
Hdf5File hdf5_file(const std::vector<StoredParameter>& arrays);

}  // namespace nnl

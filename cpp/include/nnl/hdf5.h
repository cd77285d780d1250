// SPDX-License-Identifier: Apache-2.0
// Where the arrays of an HDF5 file lie, if it is as simple as files of parameters are.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nnl/file_bytes.h"
#include "nnl/spec.h"

namespace nnl {

struct Hdf5Array {
  std::string name;   // its path
  std::string dtype;  // as numpy writes it: "<f4"
  Shape shape;
  uint64_t start;                                           // where its numbers begin
  std::vector<std::pair<std::string, int64_t>> attributes;  // integers beside it
};

// All arrays of a file. ValueError: the HDF5 library should read it. This reader knows what
// h5py writes by default: groups with symbol tables, arrays of numbers in one run, attributes that
// are one integer. Source: HDF5 File Format Specification Version 1.1, sections II to IV.
NNL_API std::vector<Hdf5Array> hdf5_arrays(const Bytes& file);

}  // namespace nnl

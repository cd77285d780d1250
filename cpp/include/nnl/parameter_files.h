// SPDX-License-Identifier: Apache-2.0
// Files of parameters: .safetensors, .h5, .protobuf and others, and those inside of .nnp archives.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "nnl/errors.h"
#include "nnl/spec.h"

namespace nnl {

// A parameter as it stands in a file, in the plain order.
struct StoredParameter {
  std::string name;
  Spec spec;
  const void* data;
  bool need_grad = true;
};

struct StoredParameters {
  std::vector<StoredParameter> all;  // in the order of the file
  std::shared_ptr<void> memory;      // that they lie in
};

// The extension tells the format: .h5, .protobuf, .nntxt or .prototxt, .nnp, whose members .h5 and
// .protobuf are read, .nnlp, or .safetensors and numpy's .npz, which have no need_grad.
// ValueError: the file is damaged, or of another kind; the text names it.
NNL_API StoredParameters read_parameters(const std::string& path);

// Writes .safetensors, .h5 or .protobuf. The file appears under its name when it is complete.
// .h5 has no bfloat16 and no bool: float32 and uint8 stand for them.
NNL_API void write_parameters(const std::string& path,
                              const std::vector<StoredParameter>& parameters);

}  // namespace nnl

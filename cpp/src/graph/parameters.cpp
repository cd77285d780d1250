// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "nnl/parameter_files.h"
#include "nnl/parametric_functions.h"

namespace nnl {

void load_parameters(const ParameterDirectory& params, const std::string& path) {
  const StoredParameters stored = read_parameters(path);
  for (const StoredParameter& p : stored.all) {
    const Variable v = params.get_parameter_or_create(p.name, p.spec.shape, nullptr, p.need_grad);
    const Array values(p.spec);
    if (p.spec.bytes()) std::memcpy(values.bytes(), p.data, p.spec.bytes());
    values.data<float>();
    v.data().copy_from(values);
  }
}

void save_parameters(const ParameterDirectory& params, const std::string& path) {
  std::vector<StoredParameter> all;
  for (const auto& [name, v] : params.get_parameters(false))
    all.push_back({name, v.data().spec(), v.data().bytes(), v.need_grad()});
  write_parameters(path, all);
}

}  // namespace nnl

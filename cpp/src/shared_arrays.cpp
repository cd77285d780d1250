// SPDX-License-Identifier: Apache-2.0
#include "shared_arrays.h"

#include "lowering.h"

namespace nnl {

Form& SharedArray::form(const Spec& spec) {
  for (Form& f : forms_)
    if (f.spec.dtype == spec.dtype && f.spec.layout == spec.layout) return f;
  memories_.push_back(std::make_unique<Memory>(spec.bytes()));
  forms_.push_back({spec, memories_.back()->data(), 0});
  return forms_.back();
}

void SharedArray::refresh(Form& form) {
  if (form.version == version_) return;
  const DType own = plain().spec.dtype;
  if (form.spec.dtype == own) {
    for (const Form& f : forms_) {
      if (f.version != version_ || f.spec.dtype != own) continue;
      run_once(*conversion("to_layout", f.spec, form.spec), f.data, form.data);
      break;
    }
  } else {  // a copy in 16 bits, of the form in the same order
    Spec wide = form.spec;
    wide.dtype = own;
    Form& source = this->form(wide);
    refresh(source);
    run_once(*conversion("cast", source.spec, form.spec), source.data, form.data);
  }
  form.version = version_;
}

}  // namespace nnl

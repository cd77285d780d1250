// SPDX-License-Identifier: Apache-2.0
#include <new>
#include <string>
#include <vector>

#include "nnl/model.h"
#include "nnl/nnl.h"
#include "nnl/threads.h"
#include "nnl/version.h"

struct nnl_file {
  nnl::ModelFile file;
  std::vector<std::string> programs;
};

struct nnl_model {
  nnl::Model model;

  std::vector<nnl::Tensor>& tensors(nnl_role role) {
    return role == NNL_INPUT ? model.inputs() : model.outputs();
  }
};

namespace {

static_assert(NNL_BOOL == static_cast<int>(nnl::DType::boolean));

thread_local std::string error;

nnl_status failed(nnl_status status, const char* what) {
  try {
    error = what;
  } catch (...) {
    error.clear();
  }
  return status;
}

// Nothing is thrown through C.
template <class F>
nnl_status guarded(F&& f) noexcept {
  try {
    f();
    return NNL_OK;
  } catch (const nnl::ValueError& e) {
    return failed(NNL_WRONG, e.what());
  } catch (const std::bad_alloc&) {
    return failed(NNL_MEMORY, "there is not enough memory");
  } catch (const std::length_error&) {
    return failed(NNL_MEMORY, "no machine has as much memory");
  } catch (const std::exception& e) {
    return failed(NNL_INTERNAL, e.what());
  } catch (...) {
    return failed(NNL_INTERNAL, "unknown error");
  }
}

template <class T>
T& given(T* pointer, const char* function, const char* what) {
  if (!pointer) throw nnl::ValueError(std::string(function) + ": " + what + " is NULL");
  return *pointer;
}

std::vector<nnl::Tensor>& tensors_of(const nnl_model* model, nnl_role role, const char* function) {
  given(model, function, "model");
  if (role != NNL_INPUT && role != NNL_OUTPUT)
    throw nnl::ValueError(std::string(function) + ": role is neither NNL_INPUT nor NNL_OUTPUT");
  return const_cast<nnl_model*>(model)->tensors(role);
}

nnl::Tensor& tensor_of(const nnl_model* model, nnl_role role, size_t index, const char* function) {
  auto& tensors = tensors_of(model, role, function);
  if (index >= tensors.size())
    throw nnl::ValueError(std::string(function) + ": index is " + std::to_string(index) +
                          ", the model has " + std::to_string(tensors.size()) +
                          (role == NNL_INPUT ? " inputs" : " outputs"));
  return tensors[index];
}

}  // namespace

#define NNL_TEXT_OF(x) #x
#define NNL_TEXT(x) NNL_TEXT_OF(x)

const char* nnl_version(void) {
  return NNL_TEXT(NNL_VERSION_MAJOR) "." NNL_TEXT(NNL_VERSION_MINOR) "." NNL_TEXT(
      NNL_VERSION_PATCH);
}

const char* nnl_error(void) { return error.c_str(); }

nnl_status nnl_set_threads(int count) {
  return guarded([&] { nnl::set_threads(count); });
}

nnl_status nnl_open(const char* path, nnl_file** file) {
  return guarded([&] {
    given(file, "nnl_open", "file") = nullptr;
    nnl::ModelFile opened(&given(path, "nnl_open", "path"));
    *file = new nnl_file{opened, opened.programs()};
  });
}

void nnl_close(nnl_file* file) { delete file; }

size_t nnl_program_count(const nnl_file* file) { return file ? file->programs.size() : 0; }

const char* nnl_program_name(const nnl_file* file, size_t index) {
  return index < nnl_program_count(file) ? file->programs[index].c_str() : nullptr;
}

nnl_status nnl_save_parameters(const nnl_file* file, const char* path) {
  return guarded([&] {
    given(file, "nnl_save_parameters", "file")
        .file.save_parameters(&given(path, "nnl_save_parameters", "path"));
  });
}

nnl_status nnl_load_parameters(nnl_file* file, const char* path) {
  return guarded([&] {
    given(file, "nnl_load_parameters", "file")
        .file.load_parameters(&given(path, "nnl_load_parameters", "path"));
  });
}

nnl_status nnl_make(const nnl_file* file, const char* program, nnl_model** model) {
  return guarded([&] {
    given(model, "nnl_make", "model") = nullptr;
    const nnl::ModelFile& of = given(file, "nnl_make", "file").file;
    *model = new nnl_model{nnl::Model(of, program ? program : "")};
  });
}

void nnl_free(nnl_model* model) { delete model; }

size_t nnl_count(const nnl_model* model, nnl_role role) {
  if (!model || (role != NNL_INPUT && role != NNL_OUTPUT)) return 0;
  return const_cast<nnl_model*>(model)->tensors(role).size();
}

nnl_status nnl_get(const nnl_model* model, nnl_role role, size_t index, nnl_tensor* tensor) {
  return guarded([&] {
    const nnl::Tensor& t = tensor_of(model, role, index, "nnl_get");
    const nnl::Spec& spec = t.spec();
    given(tensor, "nnl_get", "tensor") = {t.name().c_str(),  static_cast<nnl_dtype>(spec.dtype),
                                          spec.shape.size(), spec.shape.data(),
                                          spec.bytes(),      t.data()};
  });
}

nnl_status nnl_find(const nnl_model* model, nnl_role role, const char* name, size_t* index) {
  return guarded([&] {
    const auto& tensors = tensors_of(model, role, "nnl_find");
    const std::string wanted = &given(name, "nnl_find", "name");
    nnl::Model& of = const_cast<nnl_model*>(model)->model;
    const nnl::Tensor& found = role == NNL_INPUT ? of.input(wanted) : of.output(wanted);
    given(index, "nnl_find", "index") = static_cast<size_t>(&found - tensors.data());
  });
}

nnl_status nnl_bind(nnl_model* model, nnl_role role, size_t index, void* data, size_t bytes) {
  return guarded([&] {
    nnl::Tensor& t = tensor_of(model, role, index, "nnl_bind");
    try {
      t.bind(data, bytes);
    } catch (const nnl::ValueError& e) {
      throw nnl::ValueError(std::string("nnl_bind: ") + e.what());
    }
  });
}

nnl_status nnl_resize(nnl_model* model, size_t index, const int64_t* shape, size_t rank) {
  return guarded([&] {
    nnl::Tensor& t = tensor_of(model, NNL_INPUT, index, "nnl_resize");
    if (rank) given(shape, "nnl_resize", "shape");
    t.resize(nnl::Shape(shape, shape + rank));
  });
}

nnl_status nnl_get_axis(const nnl_model* model, size_t index, size_t axis, nnl_axis* found) {
  return guarded([&] {
    const nnl::Tensor& t = tensor_of(model, NNL_INPUT, index, "nnl_get_axis");
    if (axis >= t.axes().size())
      throw nnl::ValueError("nnl_get_axis: axis is " + std::to_string(axis) + ", " + t.name() +
                            " has " + std::to_string(t.axes().size()));
    const nnl::OpenAxis& a = t.axes()[axis];
    given(found, "nnl_get_axis", "found") = {a.name.empty() ? nullptr : a.name.c_str(), a.least,
                                             a.greatest, a.multiple};
  });
}

nnl_status nnl_prepare(nnl_model* model) {
  return guarded([&] { given(model, "nnl_prepare", "model").model.prepare(); });
}

nnl_status nnl_run(nnl_model* model) {
  return guarded([&] { given(model, "nnl_run", "model").model.run(); });
}

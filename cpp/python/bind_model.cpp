// SPDX-License-Identifier: Apache-2.0
// Models as C++ programs use them, for the tests that compare them with Python's own runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "nnl/model.h"

namespace nb = nanobind;
using namespace nnl;

namespace {

nb::bytes bytes(const Tensor& t) { return nb::bytes(t.data(), t.spec().bytes()); }

void copy(Tensor& x, nb::handle value) {
  Py_buffer b;
  if (PyObject_GetBuffer(value.ptr(), &b, PyBUF_C_CONTIGUOUS) < 0) throw nb::python_error();
  struct Release {
    Py_buffer& b;
    ~Release() { PyBuffer_Release(&b); }
  } release{b};
  const Shape shape(b.shape, b.shape + b.ndim);
  const Shape& now = x.spec().shape;
  if (shape.size() == now.size() && shape != now) x.resize(shape);
  const bool fits = static_cast<size_t>(b.len) == x.spec().bytes();
  if (fits) std::memcpy(x.data(), b.buf, x.spec().bytes());
  if (!fits) throw ValueError(x.name() + " is not a contiguous " + x.spec().text());
}

nb::dict run(Model& model, nb::dict inputs) {
  for (auto [name, value] : inputs) copy(model.input(nb::cast<std::string>(name)), value);
  {
    nb::gil_scoped_release unlock;
    model.run();
  }
  nb::dict found;
  for (const Tensor& y : model.outputs()) found[y.name().c_str()] = bytes(y);
  return found;
}

}  // namespace

void bind_model(nb::module_& m) {
  nb::class_<ModelFile>(m, "ModelFile")
      .def(nb::init<const std::string&>())
      .def_prop_ro("parameters", &ModelFile::parameters)
      .def("parameter",
           [](ModelFile& file, const std::string& name) { return bytes(file.parameter(name)); })
      .def("save_parameters", &ModelFile::save_parameters)
      .def("load_parameters", &ModelFile::load_parameters);
  nb::class_<Model>(m, "Model")
      .def(nb::init<const ModelFile&, const std::string&>(), nb::arg("file"),
           nb::arg("program") = "")
      .def(nb::init<const std::string&, const std::string&>(), nb::arg("path"),
           nb::arg("program") = "")
      .def("run", &run)
      .def("prepare", &Model::prepare)
      .def("resize", [](Model& model, const std::string& name,
                        const std::vector<int64_t>& shape) { model.input(name).resize(shape); })
      .def("shape",
           [](Model& model, const std::string& name) { return model.output(name).spec().shape; })
      .def_prop_ro("file", &Model::file)
      .def("profile",
           [](Model& model) {
             nb::list found;
             for (const StepCost& s : model.profile())
               found.append(nb::make_tuple(s.op, s.flops, s.bytes));
             return found;
           })
      .def_prop_ro("arena_bytes", &Model::arena_bytes);
}

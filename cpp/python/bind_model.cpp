// SPDX-License-Identifier: Apache-2.0
// Models as C++ programs use them, for the tests that compare them with Python's own runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "nnl/json.h"
#include "nnl/model.h"
#include "nnl/tokenizer.h"

namespace nb = nanobind;
using namespace nnl;

namespace {

nb::bytes bytes(const Tensor& t) { return nb::bytes(t.data(), t.spec().bytes()); }

// The memory of a contiguous array.
class Contiguous {
 public:
  explicit Contiguous(nb::handle array, bool written = false) {
    if (PyObject_GetBuffer(array.ptr(), &b_, PyBUF_C_CONTIGUOUS | (written ? PyBUF_WRITABLE : 0)))
      throw nb::python_error();
  }
  ~Contiguous() { PyBuffer_Release(&b_); }
  Contiguous(const Contiguous&) = delete;
  Contiguous& operator=(const Contiguous&) = delete;

  void* data() const { return b_.buf; }
  size_t bytes() const { return static_cast<size_t>(b_.len); }
  Shape shape() const { return {b_.shape, b_.shape + b_.ndim}; }
  void check(const Tensor& x) const {
    if (bytes() != x.spec().bytes())
      throw ValueError(x.name() + " is not a contiguous " + x.spec().text());
  }

 private:
  Py_buffer b_;
};

void resize(Tensor& x, const Shape& shape) {
  if (shape != x.spec().shape) x.resize(shape);
}

void copy(Tensor& x, nb::handle value) {
  if (nb::isinstance<nb::list>(value))
    return x.copy_strings(nb::cast<std::vector<std::string>>(value));
  const Contiguous array(value);
  if (array.shape().size() == x.spec().shape.size()) resize(x, array.shape());
  array.check(x);
  std::memcpy(x.data(), array.data(), array.bytes());
}

// Lets an input be an array, until it is another one: the caller keeps it until the run is over.
void give(Model& model, const std::string& name, nb::handle value) {
  const Contiguous array(value);
  Tensor& x = model.input(name);
  const bool grows = array.bytes() >= x.spec().bytes();  // there is room at every moment
  if (grows) x.bind(array.data(), array.bytes());
  resize(x, array.shape());
  array.check(x);
  if (!grows) x.bind(array.data(), array.bytes());
}

void take(Model& model, const std::string& name, nb::handle value) {
  const Contiguous array(value, true);
  const Tensor& y = model.output(name);
  array.check(y);
  std::memcpy(array.data(), y.data(), array.bytes());
}

nb::dict run(Model& model, nb::dict inputs) {
  for (auto [name, value] : inputs) copy(model.input(nb::cast<std::string>(name)), value);
  {
    nb::gil_scoped_release unlock;
    model.run();
  }
  nb::dict found;
  for (const Tensor& y : model.outputs())
    found[y.name().c_str()] = y.is_text() ? nb::cast(y.strings()) : nb::object(bytes(y));
  return found;
}

}  // namespace

void bind_model(nb::module_& m) {
  nb::class_<ModelFile>(m, "ModelFile")
      .def(nb::init<const std::string&>())
      .def_prop_ro("parameters", &ModelFile::parameters)
      .def("parameter",
           [](ModelFile& file, const std::string& name) { return bytes(file.parameter(name)); })
      .def("set_parameter",
           [](ModelFile& file, const std::string& name, nb::handle value) {
             const Contiguous array(value);
             file.set_parameter(name, array.data(), array.bytes());
           })
      .def("reset", &ModelFile::reset)
      .def("save_parameters", &ModelFile::save_parameters)
      .def("load_parameters", &ModelFile::load_parameters);
  nb::class_<Model>(m, "Model")
      .def(nb::init<const ModelFile&, const std::string&>(), nb::arg("file"),
           nb::arg("program") = "")
      .def(nb::init<const std::string&, const std::string&>(), nb::arg("path"),
           nb::arg("program") = "")
      .def("__init__",
           [](Model* self, const std::string& path, const std::string& program,
              const std::string& context) { new (self) Model(path, {context.c_str()}, program); })
      .def("run", &run)
      .def("give", &give)
      .def("execute", &Model::run, nb::call_guard<nb::gil_scoped_release>())
      .def("take", &take)
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
  nb::class_<Tokenizer>(m, "Tokenizer")
      .def("__init__", [](Tokenizer* self,
                          const std::string& json) { new (self) Tokenizer(Json::parse(json)); })
      .def("encode", [](const Tokenizer& self, nb::bytes text,
                        bool special) { return self.encode({text.c_str(), text.size()}, special); })
      .def("decode",
           [](const Tokenizer& self, const std::vector<int64_t>& tokens) {
             const std::string text = self.decode(tokens);
             return nb::bytes(text.data(), text.size());
           })
      .def("pieces", [](const Tokenizer& self, const std::vector<int64_t>& tokens) {
        TextStream stream(self);
        std::vector<std::string> found;
        for (int64_t token : tokens) found.push_back(stream.add(token));
        found.push_back(stream.rest());
        return found;
      });
}

// SPDX-License-Identifier: Apache-2.0
// The Python face of the library. Arrays cross as numpy objects read through their C structure, or
// as addresses; nothing is converted per call.
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <stdexcept>
#include <typeinfo>
#include <utility>

#include "array_kernel.h"
#include "attributes.h"
#include "nnl/crc32.h"
#include "nnl/elementwise.h"
#include "nnl/executor.h"
#include "nnl/hdf5.h"
#include "nnl/message_split.h"
#include "nnl/message_text.h"
#include "nnl/packing.h"
#include "nnl/plan.h"
#include "nnl/program_file.h"
#include "nnl/read.h"
#include "nnl/rules.h"
#include "nnl/runner.h"
#include "nnl/threads.h"
#include "plan_buffers.h"

namespace nb = nanobind;
using namespace nnl;

void bind_array_kernel(nb::module_& m);  // array_kernel.cpp
void bind_call(nb::module_& m);          // call.cpp
void bind_graph(nb::module_& m);         // bind_graph.cpp
void bind_bulk(nb::module_& m);          // bulk.cpp
void bind_parametric(nb::module_& m);    // parametric.cpp
void bind_location(nb::module_& m);      // location.cpp
void bind_model(nb::module_& m);         // bind_model.cpp
void bind_pieces(nb::module_& m);        // pieces.cpp
void bind_pictures(nb::module_& m);      // bind_pictures.cpp
void bind_watch(nb::module_& m);         // watch.cpp

namespace {

// (shape, dtype, layout) of a spec, None for an input left out.
using PySpec = std::tuple<Shape, int, int>;

Spec to_spec(const PySpec& s) {
  return {std::get<0>(s), static_cast<DType>(std::get<1>(s)), static_cast<Layout>(std::get<2>(s))};
}

Signature to_signature(nb::dict attributes, nb::list in, nb::list out) {
  Signature s;
  std::unordered_map<std::string, Attribute> values;
  for (auto [key, value] : attributes) values[nb::cast<std::string>(key)] = to_attribute(value);
  s.attributes = Attributes(std::move(values));
  for (nb::handle spec : in) {
    s.in_given.push_back(!spec.is_none());
    s.in.push_back(spec.is_none() ? Spec{} : to_spec(nb::cast<PySpec>(spec)));
  }
  for (nb::handle spec : out) s.out.push_back(to_spec(nb::cast<PySpec>(spec)));
  return s;
}

// A step that Python computes: called with the lock held, over arrays that it knows.
class PythonStep : public Kernel {
 public:
  explicit PythonStep(nb::object call) : call_(std::move(call)) {}
  ~PythonStep() override {
    nb::gil_scoped_acquire lock;
    call_.reset();
  }
  void run(const Buffers&) override {
    nb::gil_scoped_acquire lock;
    call_();
  }

 private:
  nb::object call_;
};

// What Plan::add takes, kept together until the plan is laid out: its kernel tells the workspace.
struct Prepared {
  std::unique_ptr<Kernel> kernel;

  Kernel& get() {
    if (!kernel) throw ValueError("this kernel belongs to a plan already");
    return *kernel;
  }
};

nb::object array_at(uintptr_t address, nb::object shape, nb::object type, nb::object owner) {
  std::vector<npy_intp> dims;
  for (nb::handle d : nb::cast<nb::sequence>(shape)) dims.push_back(nb::cast<npy_intp>(d));
  Py_INCREF(type.ptr());
  nb::object a = nb::steal(PyArray_NewFromDescr(
      &PyArray_Type, reinterpret_cast<PyArray_Descr*>(type.ptr()), static_cast<int>(dims.size()),
      dims.data(), nullptr, reinterpret_cast<void*>(address), NPY_ARRAY_CARRAY, nullptr));
  if (!a.is_valid()) throw nb::python_error();
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(a.ptr()), owner.release().ptr()) < 0)
    throw nb::python_error();
  return a;
}

nb::object empty_of(nb::handle shape, nb::handle dtype) {
  std::vector<npy_intp> dims;
  for (nb::handle d : nb::cast<nb::sequence>(shape)) dims.push_back(nb::cast<npy_intp>(d));
  return empty_array(dims, reinterpret_cast<PyArray_Descr*>(dtype.ptr()));
}

// Memory of Python objects, lent while this lives.
class Lent {
 public:
  Lent() = default;
  ~Lent() {
    for (Py_buffer& b : buffers_) PyBuffer_Release(&b);
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  Span add(nb::handle x, int flags) {
    Py_buffer b;
    if (PyObject_GetBuffer(x.ptr(), &b, flags) < 0) throw nb::python_error();
    buffers_.push_back(b);
    return {b.buf, static_cast<size_t>(b.len)};
  }

 private:
  std::vector<Py_buffer> buffers_;
};

uint32_t crc32_of(nb::handle data, uint32_t before) {
  Lent lent;
  const Span bytes = lent.add(data, PyBUF_SIMPLE);
  nb::gil_scoped_release unlock;
  return crc32(bytes.data, bytes.size, before);
}

// Parts are what has writable memory, or numbers of bytes that nobody wants.
class PyReading {
 public:
  PyReading(int file, uint64_t offset, nb::list parts, bool checked)
      : reading_(file, offset, spans(parts), checked) {}

  uint32_t wait() {
    nb::gil_scoped_release unlock;
    return reading_.wait();
  }

 private:
  std::vector<Span> spans(nb::list parts) {
    std::vector<Span> out;
    for (nb::handle part : parts)
      out.push_back(PyLong_Check(part.ptr()) ? Span{nullptr, nb::cast<size_t>(part)}
                                             : lent_.add(part, PyBUF_WRITABLE));
    return out;
  }

  Lent lent_;
  Reading reading_;
};

// What is looked into: the number of a file, or memory.
Bytes bytes_of(nb::handle source, uint64_t start, uint64_t size, Lent& lent) {
  Bytes bytes{nullptr, -1, start, size};
  if (PyLong_Check(source.ptr())) {
    bytes.file = nb::cast<int>(source);
    return bytes;
  }
  const Span memory = lent.add(source, PyBUF_SIMPLE);
  if (start > memory.size || size > memory.size - start) throw ValueError("less memory than that");
  bytes.data = static_cast<const uint8_t*>(memory.data) + start;
  return bytes;
}

// (name, dtype, shape, begin, attributes) of the arrays.
nb::list hdf5_arrays_of(nb::handle source, uint64_t start, uint64_t size) {
  Lent lent;
  nb::list out;
  for (const Hdf5Array& a : hdf5_arrays(bytes_of(source, start, size, lent))) {
    nb::dict attributes;
    for (const auto& [name, value] : a.attributes) attributes[name.c_str()] = value;
    const nb::tuple shape(nb::cast(a.shape));
    out.append(nb::make_tuple(a.name, a.dtype, shape, a.start, attributes));
  }
  return out;
}

// The rest of the message, and {index: (begin, end)} of the strings.
nb::tuple split_message_of(nb::handle source, uint64_t start, uint64_t size,
                           const std::vector<uint32_t>& path) {
  Lent lent;
  const Split split = split_message(bytes_of(source, start, size, lent), path);
  nb::dict runs;
  for (const Split::Run& r : split.runs) runs[nb::int_(r.index)] = nb::make_tuple(r.begin, r.end);
  return nb::make_tuple(nb::bytes(split.rest.data(), split.rest.size()), runs);
}

// The names, numbers, types and so on of a message's fields, as in nnl/message_text.h.
using PyFields = std::vector<std::tuple<std::string, uint32_t, int, std::string, std::string>>;

MessageText::Describe described_by(std::function<PyFields(const std::string&)> ask) {
  return [ask = std::move(ask)](const std::string& message) {
    std::vector<MessageField> fields;
    for (auto& f : ask(message))
      std::apply([&](auto&... part) { fields.push_back({std::move(part)...}); }, f);
    return fields;
  };
}

void* import_numpy() {
  import_array1(nullptr);
  return nullptr;
}

}  // namespace

NB_MODULE(_native, m) {
  import_numpy();
  nb::set_leak_warnings(false);  // plans that live until the interpreter ends are no leak
  if (PyErr_Occurred()) throw nb::python_error();
  nb::register_exception_translator([](const std::exception_ptr& p, void*) { set_error(p); });
  m.def("kernel_names", &kernel_names);
  m.def("rule_names", &rule_names);
  m.def("rule_inputs", [](const std::string& op) {
    std::vector<std::tuple<std::string, bool, bool, bool>> inputs;
    for (const RuleInput& x : rule_inputs(op))
      inputs.emplace_back(x.name, x.optional, x.whole, x.variadic);
    return inputs;
  });
  m.def("infer", [](const std::string& op, nb::dict attributes, nb::list in) {
    std::vector<PySpec> specs;
    for (const Spec& s : infer(op, to_signature(attributes, in, nb::list())))
      specs.emplace_back(s.shape, static_cast<int>(s.dtype), static_cast<int>(s.layout));
    return specs;
  });
  m.def("abilities_of", [](const std::string& op) {
    const Abilities& a = abilities(op);
    nb::dict found;
    found["last_in"] = a.last_in;
    found["last_out"] = a.last_out;
    found["tiled_in"] = a.tiled_in;
    found["tiled_out"] = a.tiled_out;
    found["packs"] = a.packs;
    found["copies"] = a.copies;
    found["appends"] = a.appends;
    found["most_rows"] = a.most_rows;
    found["adds_halves"] = a.adds_halves;
    return found;
  });
  m.def("threads", &threads);
  m.def("set_threads", &set_threads);
  m.def("array_at", &array_at);
  m.def("empty", &empty_of);
  m.def("crc32", &crc32_of, nb::arg("data"), nb::arg("before") = 0);
  nb::class_<PyReading>(m, "Reading")
      .def(nb::init<int, uint64_t, nb::list, bool>())
      .def("wait", &PyReading::wait);
  m.def("hdf5_arrays", &hdf5_arrays_of);
  m.def("split_message", &split_message_of);
  nb::class_<MessageText>(m, "MessageText")
      .def("__init__",
           [](MessageText* self, std::function<PyFields(const std::string&)> describe) {
             new (self) MessageText(described_by(std::move(describe)));
           })
      .def("encoded",
           [](MessageText& self, const std::string& message, nb::bytes text) -> nb::object {
             auto found = self.encoded(message, {text.c_str(), text.size()});
             if (!found) return nb::none();
             return nb::bytes(found->data(), found->size());
           });

  m.def("elementwise_codes", &elementwise_codes);

  bind_array_kernel(m);
  bind_call(m);
  bind_graph(m);
  bind_bulk(m);
  bind_parametric(m);
  bind_location(m);
  bind_model(m);
  bind_pieces(m);
  bind_watch(m);
  bind_pictures(m);
  m.def(
      "array_kernel",
      [](const std::string& op, nb::dict attributes, nb::list in, nb::list out, nb::list out_types,
         std::vector<size_t> writes) -> nb::object {
        Signature s = to_signature(attributes, in, out);
        if (std::max(s.in.size(), s.out.size()) > ArrayKernel::most) return nb::none();
        auto kernel = make_kernel(op, s);
        if (!kernel) return nb::none();
        return nb::cast(new ArrayKernel(std::move(kernel), s, out_types, std::move(writes)),
                        nb::rv_policy::take_ownership);
      },
      nb::arg("op"), nb::arg("attributes"), nb::arg("in_specs"), nb::arg("out_specs"),
      nb::arg("out_types"), nb::arg("writes") = std::vector<size_t>());

  // Names of the attributes that the kernel of an op asks for while it is set up.
  m.def("attributes_asked",
        [](const std::string& op, nb::dict attributes, nb::list in, nb::list out) {
          Signature s = to_signature(attributes, in, out);
          std::set<std::string> asked;
          s.attributes.note(&asked);
          make_kernel(op, s);
          return std::vector<std::string>(asked.begin(), asked.end());
        });

  m.def("packed_convolution_bytes", [](nb::dict attributes, nb::list in, nb::list out) {
    return packed_convolution(to_signature(attributes, in, out)).order.bytes;
  });

  m.def("packed_bytes", [](const std::string& op, nb::dict attributes, nb::list in, nb::list out) {
    return packed_product(op, to_signature(attributes, in, out)).order.bytes;
  });

  nb::class_<Prepared>(m, "Kernel")
      .def_prop_ro("workspace", [](Prepared& p) { return p.get().workspace(); })
      .def("may_overwrite",
           [](Prepared& p, size_t o, size_t i) { return p.get().may_overwrite(o, i); });
  m.def("kernel",
        [](const std::string& op, nb::dict attributes, nb::list in, nb::list out) -> nb::object {
          auto kernel = make_kernel(op, to_signature(attributes, in, out));
          if (!kernel) return nb::none();
          return nb::cast(new Prepared{std::move(kernel)}, nb::rv_policy::take_ownership);
        });
  m.def("control_kernel", [](const std::string& program) {
    return new Prepared{control_kernel(program_of(program))};
  });
  m.def("python_step", [](nb::object call) {
    return new Prepared{std::make_unique<PythonStep>(std::move(call))};
  });

  // Owner of the arrays in an arena. It must not be the plan: a Python step holds the arrays it
  // works on, the plan holds the step, and Python could not find that cycle.
  nb::class_<Memory>(m, "Memory").def_prop_ro("address", [](Memory& memory) {
    return reinterpret_cast<uintptr_t>(memory.data());
  });

  nb::class_<Plan>(m, "Plan")
      .def(nb::init<std::vector<int64_t>, size_t>())
      .def("add",
           [](Plan& p, std::string name, Prepared& k, std::vector<int> in, std::vector<int> out,
              int64_t workspace) {
             k.get();
             p.add(std::move(name), std::move(k.kernel), std::move(in), std::move(out), workspace);
           })
      .def("bind_array",  // a C-contiguous array; the caller keeps it alive
           [](Plan& p, int slot, nb::handle x) {
             p.bind(slot, PyArray_DATA(reinterpret_cast<PyArrayObject*>(x.ptr())));
           })
      .def("bind_arrays", &bind_arrays)
      .def("renew", &renew_buffers)
      .def(
          "run", [](Plan& p, size_t begin, size_t end) { p.run(begin, end); },
          nb::call_guard<nb::gil_scoped_release>())
      .def("run_timed", &Plan::run_timed, nb::call_guard<nb::gil_scoped_release>())
      .def("may_overwrite", &Plan::may_overwrite)
      .def("__len__", &Plan::size)
      .def_prop_ro("at", &Plan::at)
      .def_prop_ro("arena", [](Plan& p) { return p.arena(); })
      .def_prop_ro("times", &Plan::times)
      .def_prop_ro("starts", &Plan::starts);

  nb::class_<Executor>(m, "Executor")
      .def(nb::init<>())
      .def(
          "start",  // the caller keeps the plan and the arrays, which are C-contiguous
          [](Executor& e, Plan& p, size_t begin, size_t end, const nb::list& pairs) {
            std::vector<Executor::Copy> copies;
            for (nb::handle pair : pairs) {
              auto* to = reinterpret_cast<PyArrayObject*>(PyTuple_GET_ITEM(pair.ptr(), 0));
              auto* from = reinterpret_cast<PyArrayObject*>(PyTuple_GET_ITEM(pair.ptr(), 1));
              copies.push_back({PyArray_DATA(to), PyArray_DATA(from),
                                static_cast<size_t>(PyArray_NBYTES(from))});
            }
            e.start(p, begin, end, std::move(copies));
          },
          nb::arg("plan"), nb::arg("begin"), nb::arg("end"), nb::arg("copies") = nb::list())
      .def("stop", &Executor::stop)
      .def("wait", [](const Executor& e) {
        if (e.is_running()) {
          nb::gil_scoped_release unlock;
          e.wait();
        } else {
          e.wait();
        }
      });
}

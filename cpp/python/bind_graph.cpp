// SPDX-License-Identifier: Apache-2.0
// Networks written in C++, for tests: one function with its gradient, and updates by a solver.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include <cstring>

#include "attributes.h"
#include "nnl/network.h"
#include "nnl/solvers.h"

namespace nb = nanobind;
using namespace nnl;

namespace {

// (bytes, number of the type, shape), of which Python makes an array; None for no array.
using PyArray = std::tuple<nb::bytes, int, Shape>;

nb::object array_of(const Array& a) {
  const Spec& s = a.spec();
  return nb::cast(PyArray(nb::bytes(a.bytes(), s.bytes()), static_cast<int>(s.dtype), s.shape));
}

Variable leaf_of(const PyArray& from) {
  const auto& [bytes, type, shape] = from;
  const Array a(Spec{shape, static_cast<DType>(type)});
  if (bytes.size() != a.spec().bytes()) throw ValueError("an array has another size");
  std::memcpy(a.bytes(), bytes.data(), bytes.size());
  return Variable(a);
}

// Outputs of an op, and gradients of its inputs for given ones of its first `gys` outputs.
// Args: at_once: in the way of AutoForward.
nb::tuple call(const std::string& op, nb::dict attributes, nb::list inputs, std::vector<bool> need,
               nb::list gys, bool at_once) {
  AttributeMap values;
  for (auto [key, value] : attributes) values[nb::cast<std::string>(key)] = to_attribute(value);
  std::vector<Variable> x;
  for (size_t i = 0; i < inputs.size(); ++i) {
    x.push_back(inputs[i].is_none() ? Variable() : leaf_of(nb::cast<PyArray>(inputs[i])));
    if (x.back()) x.back().set_need_grad(need[i]);
  }
  AutoForward mode(at_once);
  const std::vector<Variable> y = nnl::apply(op, values, x);
  // one graph over all outputs: the sum of their products with the given gradients
  Variable total;
  for (size_t i = 0; i < gys.size(); ++i) {
    if (gys[i].is_none()) continue;
    const Variable part = functions::sum(y[i] * leaf_of(nb::cast<PyArray>(gys[i])));
    total = total ? total + part : part;
  }
  for (const Variable& v : y) Variable(v).set_persistent();
  if (!at_once) (total ? total : y[0]).forward();
  if (total && total.need_grad()) total.backward();
  nb::list outputs, gradients;
  for (const Variable& v : y)
    outputs.append(v.data().has_value() ? array_of(v.data()) : nb::none());
  for (size_t i = 0; i < x.size(); ++i)
    gradients.append(need[i] && total && x[i] ? array_of(x[i].grad()) : nb::none());
  return nb::make_tuple(outputs, gradients);
}

template <class T>
std::unique_ptr<Solver> made() {
  return std::make_unique<T>();
}

using Make = std::unique_ptr<Solver> (*)();
const std::map<std::string, Make>& solvers_by_name() {
  static const std::map<std::string, Make> table = {
      {"Sgd", made<solvers::Sgd>},
      {"Momentum", made<solvers::Momentum>},
      {"Nesterov", made<solvers::Nesterov>},
      {"SgdW", made<solvers::SgdW>},
      {"Lars", made<solvers::Lars>},
      {"Adagrad", made<solvers::Adagrad>},
      {"Adadelta", made<solvers::Adadelta>},
      {"RMSprop", made<solvers::RMSprop>},
      {"RMSpropGraves", made<solvers::RMSpropGraves>},
      {"Adam", made<solvers::Adam>},
      {"AdamW", made<solvers::AdamW>},
      {"Adamax", made<solvers::Adamax>},
      {"AdaBelief", made<solvers::AdaBelief>},
      {"AMSGRAD", made<solvers::AMSGRAD>},
      {"AdaBound", made<solvers::AdaBound>},
      {"AMSBound", made<solvers::AMSBound>},
      {"Lamb", made<solvers::Lamb>},
      {"Lion", made<solvers::Lion>},
      {"Muon", made<solvers::Muon>},
  };
  return table;
}

// A parameter after an update with each of the gradients.
nb::object updated(const std::string& name, PyArray w, nb::list gradients, double decay,
                   double clip, double rate, const std::string& key) {
  const auto solver = solvers_by_name().at(name)();
  Variable v = leaf_of(w);
  solver->set_parameters({{key, v}});
  if (rate >= 0) solver->set_learning_rate(rate);
  for (nb::handle g : gradients) {
    v.grad().copy_from(leaf_of(nb::cast<PyArray>(g)).data());
    if (clip > 0) solver->clip_grad_by_norm(clip);
    if (decay > 0) solver->weight_decay(decay);
    solver->update();
  }
  return array_of(v.data());
}

nb::object initial(const std::string& kind, const Shape& shape, double a, double b) {
  seed(313);
  if (kind == "lstm") {  // the weight of a layer, of which `shape` is that of the input
    const ParameterDirectory params;
    const Variable state({1, 1, shape[1], 3});
    parametric_functions::lstm(Variable(shape), state, state, params);
    return array_of(params.get_parameter("lstm/weight_l0").data());
  }
  Variable v(shape);
  const Initializer make = kind == "uniform"  ? initializer::uniform(a, b)
                           : kind == "normal" ? initializer::normal(a)
                                              : initializer::constant(a);
  make(shape, v.data<float>());
  return array_of(v.data());
}

// Outputs of a network from a file, and the gradients of its parameters for the first output's sum.
nb::tuple network(const std::string& path, int64_t batch_size,
                  std::map<std::string, PyArray> values) {
  const ParameterDirectory params;
  const Network net(path, "", params, batch_size);
  for (const auto& [name, value] : values) net.input(name).data().copy_from(leaf_of(value).data());
  nb::dict outputs, gradients;
  for (const auto& [name, y] : net.outputs()) {
    y.forward();
    outputs[name.c_str()] = array_of(y.data());
  }
  const Variable total = functions::sum(net.outputs()[0].second);
  total.forward();
  total.backward();
  for (const auto& [name, w] : params.get_parameters())
    gradients[name.c_str()] = array_of(w.grad());
  return nb::make_tuple(outputs, gradients);
}

}  // namespace

void bind_graph(nb::module_& m) {
  m.def("graph_call", &call);
  m.def("gradient_names", &gradient_names);
  m.def("solver_names", [] {
    std::vector<std::string> names;
    for (const auto& [name, make] : solvers_by_name()) names.push_back(name);
    return names;
  });
  m.def("solver_updates", &updated, nb::arg("solver"), nb::arg("w"), nb::arg("gradients"),
        nb::arg("decay"), nb::arg("clip"), nb::arg("rate"), nb::arg("name") = "w");
  m.def("initial_values", &initial);
  m.def("network", &network);
  m.def("copy_parameters", [](const std::string& from, const std::string& to) {
    const ParameterDirectory params;
    load_parameters(params, from);
    save_parameters(params, to);
  });
}

# SPDX-License-Identifier: Apache-2.0
"""Networks of files as documents: any format that nnl reads becomes nnl's graph, and that nodes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nnl.console.documents import sdcproj
from nnl.console.documents.analysis import analyse
from nnl.console.documents.document import MAX_TEXT, Document, Net, Node, place
from nnl.console.errors import Refused
from nnl.console.palette.palette import Layer, layers
from nnl.converters.formats import read_model
from nnl.converters.networks.model import Network, NnpModel, keep_constants
from nnl.converters.nnp.archive import Content
from nnl.converters.nnp.content import expanded
from nnl.converters.nnp.parameter_files import Stored, write_h5
from nnl.converters.nnp.training_reader import make_solver
from nnl.converters.programs import ProgramModel
from nnl.core.graph.node import Node as GraphNode
from nnl.core.graph.node import Value, capture
from nnl.core.parameters.parameter import get_parameters, parameter_scope

Key = tuple[int, int]
# Parametric functions by the op that they call: the scope of their parameters, and the parameter
# for each input of the op.
FOLDED: dict[str, tuple[str, str, dict[str, str]]] = {
    "affine": ("PF.affine", "affine", {"weight": "W", "bias": "b"}),
    "convolution": ("PF.convolution", "conv", {"weight": "W", "bias": "b"}),
    "deconvolution": ("PF.deconvolution", "deconv", {"weight": "W", "bias": "b"}),
    "depthwise_convolution": (
        "PF.depthwise_convolution",
        "depthwise_conv",
        {"weight": "W", "bias": "b"},
    ),
    "depthwise_deconvolution": (
        "PF.depthwise_deconvolution",
        "depthwise_deconv",
        {"weight": "W", "bias": "b"},
    ),
    "embed": ("PF.embed", "embed", {"w": "W"}),
    "prelu": ("PF.prelu", "prelu", {"x1": "slope"}),
    "batch_normalization": (
        "PF.batch_normalization",
        "bn",
        {"beta": "beta", "gamma": "gamma", "mean": "mean", "variance": "var"},
    ),
}
# What functions call the attributes and inputs of their ops.
_ARGUMENTS = {"axes": "axis", "keep_dims": "keepdims"}
_INPUTS = {("mean_subtraction", "rmean"): "mean", ("weight_standardization", "x"): "w"}
_DERIVED = frozenset("inplace no_scale no_bias count".split())
_EXTENSIONS = (".nntxt", ".prototxt", ".nnp", ".onnx", ".nnlp", ".sdcproj")
MAX_FUNCTIONS = 20_000


@dataclass
class Imported:
    """What a file became.

    Attributes:
        weights: Its parameters, under the names that the document gives them.
        report: What is not as in the file: (severity, text).
    """

    document: Document
    weights: list[Stored] = field(default_factory=list)
    report: list[tuple[str, str]] = field(default_factory=list)


def read(path: Path) -> Imported:
    """The document of a file.

    Raises:
        Refused: The file is of another format, or broken.
    """
    kind = path.suffix.lower()
    if kind not in _EXTENSIONS:
        wanted = ", ".join(_EXTENSIONS)
        raise Refused(
            "unreadable",
            f"{path.name}: its extension is {kind!r}, wanted {wanted}",
            None,
            path.name,
        )
    try:
        if kind == ".sdcproj":
            document, report = sdcproj.read(path)
            return Imported(document, [], report)
        if kind == ".nnlp":
            return of_network(ProgramModel(os.fspath(path)).network())
        model, _ = read_model([os.fspath(path)])
        if isinstance(model, NnpModel):
            found = _of_training_file(model)
            if not model.content().stored:
                found.weights = []  # those are only first values
            return found
        return of_network(model.network(1))
    except (ValueError, TypeError, NotImplementedError, LookupError, OSError) as error:
        text = str(error).replace(f"{path}", path.name)
        code = "unsupported" if isinstance(error, NotImplementedError) else "unreadable"
        raise Refused(code, text, None, path.name) from None


def opened(path: str, weights: str) -> dict[str, Any]:
    """What a file holds, as JSON; its parameters go to another file, if it has some."""
    found = read(Path(path))
    if found.weights:
        write_h5(weights, found.weights)
    return {"document": found.document.to_json(), "report": found.report}


def operators(path: str) -> dict[str, Any]:
    """The report on an ONNX file that does not become a network: its operators, and why not."""
    from nnl.converters.onnx.file.reader import read
    from nnl.converters.onnx.running import families as _handlers  # noqa: F401  registers the importers
    from nnl.converters.onnx.running.interpreter import Interpreter

    model = read(path)
    machine = Interpreter(model, lambda name, value: value)
    counts: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for node in model.walk():
        kind = f"{node.domain or 'ai.onnx'}.{node.op_type}"
        counts[kind] += 1
        try:
            machine.handler(node)
        except NotImplementedError as error:
            reasons[kind] = str(error)

    def ends(infos: list[Any]) -> list[dict[str, Any]]:
        return [{"name": i.name, "shape": list(i.shape or ())} for i in infos]

    return {
        "file": None,
        "format": "onnx",
        "functions": [
            {"type": k, "count": n, "supported": k not in reasons, "reason": reasons.get(k)}
            for k, n in sorted(counts.items())
        ],
        "supported": not reasons,
        "inputs": ends(model.graph.needed_inputs),
        "outputs": ends(model.graph.outputs),
        "report": [],
        "parameters": None,
        "multiply_adds": None,
    }


def _of_training_file(model: NnpModel) -> Imported:
    """The network that a file trains, with its settings; else the one that it runs."""
    content = expanded(model.content())
    proto = content.proto
    if not proto.optimizer:
        return of_network(model.network(1))
    optimizer = proto.optimizer[0]
    alone = type(proto)()
    for network in proto.network:
        if network.name == optimizer.network_name:
            alone.network.add().CopyFrom(network)
    found = of_network(NnpModel(Content(content.where, alone, content.stored)).network(1))
    sizes = [d.batch_size for d in proto.dataset if d.name in optimizer.dataset_name]
    config = found.document.config
    config["batch_size"] = next(iter(sizes), 0) or alone.network[0].batch_size or 1
    config["max_epoch"] = proto.training_config.max_epoch or 1
    config["save_best"] = proto.training_config.save_best
    config["optimizer"]["type"] = optimizer.solver.type
    config["optimizer"]["properties"] = _hyperparameters(optimizer.solver, content.where)
    config["optimizer"]["weight_decay"] = float(f"{optimizer.solver.weight_decay:.7g}")
    columns = {v.variable_name: v.data_name for v in optimizer.data_variable}
    net = found.document.main
    for n in net.nodes.values():
        column = columns.get(n.name, n.name)
        if n.type == "Input" and column != n.name:
            n.name = net.unused_name(column)
    return found


def _hyperparameters(message: Any, where: str) -> dict[str, Any]:
    """Those of a solver that differ from its defaults."""
    solver = make_solver(message, where)
    usual = type(solver)()
    rate = {solver.rate: solver.learning_rate()} if solver.rate else {}
    known = {**{k: solver.info[k] for k in solver.info}, **rate}
    default = {**{k: usual.info[k] for k in usual.info}, usual.rate: usual.learning_rate()}
    return {k: v for k, v in known.items() if v != default.get(k)}


def of_network(network: Network) -> Imported:
    """The document of a graph."""
    reader = _Reader(network)
    found = Imported(reader.document, reader.weights(), reader.report)
    _compare(found, reader)
    return found


class _Reader:
    """Turns the functions of a graph into nodes, in their order."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.document = Document({"main": Net("main")})
        self.net = self.document.main
        self.report: list[tuple[str, str]] = []
        self.names = network.every_name()
        self.made: dict[Key, tuple[Node, int]] = {}  # which node gives an edge
        self.renamed: dict[str, str] = {}  # parameters: their names in the file and here
        self.views: dict[Key, GraphNode] = {}  # reshapes of parameters that nothing else reads
        self.used: set[str] = set()
        self.shapes: dict[str, list[tuple[int, ...]]] = {}
        self.stored: dict[str, tuple[int, ...]] = {}  # shapes that layers give their parameters
        with parameter_scope("", network.parameters):
            keep_constants(network)
            registered = get_parameters(grad_only=False)
        self.registered = registered
        self.parameters = {v.edge.key: name for name, v in registered.items()}
        self.batch = next((v.shape[0] for v in network.inputs.values() if v.shape), 1)
        for name, v in network.inputs.items():
            shape = list(v.shape[1:])
            if not v.shape:
                self.report.append(("warning", f"the input {name!r} has no batch axis"))
            self._made(self._node("Input", name, {"shape": shape}), [v.edge])
        nodes = capture([v.edge for v in network.outputs.values()])
        if len(nodes) > MAX_FUNCTIONS:
            raise ValueError(f"it has {len(nodes)} functions, more than {MAX_FUNCTIONS}")
        reads = Counter(v.key for n in nodes for v in n.inputs if v is not None)
        for n in nodes:
            first = n.inputs[0].key if n.inputs and n.inputs[0] is not None else None
            if n.op.name == "reshape" and first in self.parameters and reads[first] == 1:
                self.views[id(n), 0] = n
            else:
                self._function(n)
        self._outputs()
        place(self.net)

    def _node(self, kind: str, wanted: str, properties: Mapping[str, Any]) -> Node:
        number = 1
        name = wanted = wanted[: MAX_TEXT - 8] or "layer"
        while name in self.used:
            number += 1
            name = f"{wanted}_{number}"
        self.used.add(name)
        return self.net.add(kind, name, properties)

    def _made(self, node: Node, edges: list[Value]) -> None:
        self.made.update((e.key, (node, i)) for i, e in enumerate(edges))
        shapes = [e.current_spec.shape for e in edges]
        self.shapes[node.id] = [(1, *s[1:]) if s[:1] == (self.batch,) else s for s in shapes]

    # ---- functions ----

    def _function(self, n: GraphNode) -> None:
        if n.op.name == "store" and n.inputs[1] is not None:  # gives one of its inputs
            self.made[id(n), 0] = self._source(n.inputs[1])
            return
        layer, folded = self._layer(n)
        outs = [Value.of(n, i, s, False, None) for i, s in enumerate(n.out_specs)]
        outs = outs if n.op.variadic_out else outs[: n.op.visible]
        if layer is None:
            kind = n.op.nnp or n.op.name
            properties = {"function": kind, "properties": _plain(n.attrs.as_dict())}
            self.report.append(("warning", f"the function {kind} has no layer"))
            node = self._node("Unknown", self._name(n, kind), properties)
            ports = [f"x{i}" for i in range(len(n.inputs))]
        else:
            properties, scope = self._properties(n, layer, folded)
            node = self._node(layer.type, scope or self._name(n, layer.function), properties)
            if scope and node.name != scope:  # another function shares the weights
                node.properties["scope"] = scope
            ports = self._ports(n, layer)
        for port, v in zip(ports, n.inputs, strict=False):
            if v is not None and port is not None and port not in folded:
                source, out = self._source(v)
                e = self.net.connect(source, node, port, out)
                e.id = f"e{len(self.net.edges)}"
        self._made(node, outs)

    def _source(self, v: Value) -> tuple[Node, int]:
        """The node that gives an edge; for a parameter, one that is made for it."""
        view = self.views.pop(v.key, None)
        if view is not None:  # it is no parameter of a layer
            self._function(view)
        found = self.made.get(v.key)
        if found is None:
            name = self.parameters[v.key]
            registered = self.registered[name]
            properties = {"shape": list(v.current_spec.shape), "trained": registered.need_grad}
            node = self._node("Parameter", name, properties)
            self.renamed[name] = node.name
            self._made(node, [v])
            found = node, 0
        return found

    def _layer(self, n: GraphNode) -> tuple[Layer | None, dict[str, str]]:
        """The layer for a function, and the parameter of each input that the layer makes."""
        if n.op.name in FOLDED:
            kind, scope, leaves = FOLDED[n.op.name]
            given = {
                name: v for name, v in zip(n.op.inputs, n.inputs, strict=False) if name in leaves
            }
            first = {k: self._parameter(v) for k, v in given.items() if v is not None}
            if first and None not in first.values() and self._fits(n, given):
                return layers()[kind], {k: f"{scope}/{leaves[k]}" for k in given}
        return layers().get(f"F.{n.op.name}"), {}

    def _parameter(self, v: Value) -> str | None:
        """The parameter that an edge is, as it is or in another shape."""
        view = self.views.get(v.key)
        source = v if view is None else view.inputs[0]
        return None if source is None else self.parameters.get(source.key)

    def _fits(self, n: GraphNode, given: Mapping[str, Value | None]) -> bool:
        """Whether the parametric function makes parameters of these shapes."""
        if n.op.name == "batch_normalization":
            x, axes = n.inputs[0], n.attrs.axes
            size = x.current_spec.shape if x is not None else ()
            wanted = tuple(s if i in axes else 1 for i, s in enumerate(size))
            shapes = {v.current_spec.shape for v in given.values() if v is not None}
            whole = given.get("mean") is not None and given.get("variance") is not None
            return shapes == {wanted} and whole
        return True

    def _properties(
        self, n: GraphNode, layer: Layer, folded: Mapping[str, str]
    ) -> tuple[dict[str, Any], str]:
        """Properties that differ from their defaults, and the scope of the parameters."""
        found: dict[str, Any] = {}
        attrs = n.attrs.as_dict()
        for name, value in attrs.items():
            name = name if name in layer.by_name else _ARGUMENTS.get(name, name)
            known = layer.by_name.get(name)
            value = list(value) if isinstance(value, tuple) else value
            if isinstance(value, float):
                value = float(f"{value:.7g}")  # files have 32 bits: 1e-5, not 9.99999974e-06
            if known is None:
                if name not in _DERIVED:
                    self.report.append(("warning", f"{layer.type}: {name} is left out"))
                continue
            default = list(known.default) if isinstance(known.default, tuple) else known.default
            if value is not None and value != default and not self._automatic(n, name, value):
                found[name] = value
        if (
            layer.type == "F.reshape"
            and found.get("shape", [0])[0] == self.batch
            and -1 not in found["shape"]
        ):
            found["shape"][0] = -1  # the batch
        if not folded:
            return found, ""
        arrays = {
            name: v.current_spec.shape
            for name, v in zip(n.op.inputs, n.inputs, strict=False)
            if v is not None
        }
        found.update(_sizes(layer.type, arrays, attrs))
        if "bias" in folded and "bias" not in arrays:
            found["with_bias"] = False
        for part, flag in (("gamma", "no_scale"), ("beta", "no_bias")):
            if part in folded and part not in arrays:
                found[flag] = True
        given = {}
        for name, v in zip(n.op.inputs, n.inputs, strict=False):
            old = self._parameter(v) if name in folded and v is not None else None
            if old is not None and v is not None:
                given[name], self.stored[old] = old, v.current_spec.shape
        scope = self._scope(given, folded)
        self.renamed.update((old, f"{scope}/{folded[k]}") for k, old in given.items())
        return found, scope

    def _automatic(self, n: GraphNode, name: str, value: Any) -> bool:
        """Whether a value is what nnl chooses itself."""
        kernel = getattr(n.attrs, "kernel", None)
        pooling = kernel is not None and n.op.name.endswith("pooling")
        usual = {
            "stride": list(kernel) if pooling else None,
            "pad": [0] * len(value) if isinstance(value, list) else None,
            "dilation": [1] * len(value) if isinstance(value, list) else None,
        }
        if name == "stride" and not pooling and isinstance(value, list):
            usual["stride"] = [1] * len(value)
        return name in usual and value == usual[name]

    def _scope(self, given: Mapping[str, str], folded: Mapping[str, str]) -> str:
        """The scope that parameters have in common if they are called as usual, else a new one."""
        usual = {
            old[: -len(folded[k]) - 1] for k, old in given.items() if old.endswith(f"/{folded[k]}")
        }
        if len(usual) == 1 and all(old.endswith(f"/{folded[k]}") for k, old in given.items()):
            return usual.pop()
        first = next(iter(given.values()))
        return (first.rpartition("/")[0] or first.rpartition(".")[0] or first)[: MAX_TEXT - 8]

    def _name(self, n: GraphNode, kind: str) -> str:
        """What the file calls the result, if it has given it a name; else the function's."""
        found = self.names.get((id(n), 0), "")
        return kind if not found or found.startswith("@") or "/" in found else found

    def _ports(self, n: GraphNode, layer: Layer) -> list[str | None]:
        known = [p.name for p in layer.inputs]
        names = [x for x in n.op.inputs if x != "rng"]
        if layer.type.startswith("PF."):
            return [known[0], *names[1:]]
        found: list[str | None] = [_INPUTS.get((n.op.name, x), x) for x in names]
        found = [x if x in known else None for x in found]
        if n.op.variadic:
            found += [found[-1]] * (len(n.inputs) - len(found))
        return found

    def _outputs(self) -> None:
        """Output nodes for what the file gives and other functions read too."""
        read = {e.source for e in self.net.edges}
        for name, v in self.network.outputs.items():
            node, out = self._source(v.edge)
            if node.id in read or out:
                end = self._node("Output", name, {})
                self.net.connect(node, end, "x", out).id = f"e{len(self.net.edges)}"

    def weights(self) -> list[Stored]:
        """The parameters that the nodes use, under their new names."""
        found = []
        for old, new in self.renamed.items():
            v = self.registered[old]
            value = v.data.read("host")
            found.append(Stored(new, value.reshape(self.stored.get(old, v.shape)), v.need_grad))
        return found


def _sizes(kind: str, arrays: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Properties that follow from the shapes of parameters."""
    if kind == "PF.affine":
        return {"n_outmaps": list(arrays["weight"][1:])}
    if kind == "PF.embed":
        return {"n_inputs": arrays["w"][0], "n_features": arrays["w"][1]}
    if kind == "PF.prelu":
        return {"shared": arrays["x1"] == (1,) or arrays["x1"] == ()}
    w = arrays.get("weight", ())
    last = bool(attrs.get("channel_last"))
    if kind in ("PF.convolution", "PF.deformable_convolution"):
        return {"outmaps": w[0], "kernel": list(w[1:-1] if last else w[2:])}
    if kind == "PF.deconvolution":
        out = w[-1] if last else w[1]
        kernel = list(w[1:-1] if last else w[2:])
        return {"outmaps": out * attrs["group"], "kernel": kernel}
    if kind.startswith("PF.depthwise"):
        return {"kernel": list(w[1:])}
    return {}


def _plain(attrs: Mapping[str, Any]) -> dict[str, Any]:
    kinds = (str, int, float, bool, type(None))
    return {
        k: list(v) if isinstance(v, tuple) else v
        for k, v in attrs.items()
        if isinstance(v, (tuple, *kinds))
    }


def _compare(found: Imported, reader: _Reader) -> None:
    """Report what has another shape here than in the file: what a layer could not express."""
    result = analyse(found.document)
    for problem in result["problems"]:
        if problem["severity"] == "error" and problem["code"] != "upstream":
            node = reader.net.nodes.get(problem["node"] or "")
            found.report.append(("error", f"{node.name if node else ''}: {problem['message']}"))
    nodes = result["networks"]["main"]["nodes"]
    for key, shapes in reader.shapes.items():
        got = [tuple(o["shape"]) for o in nodes[key]["outputs"]]
        if got and got != shapes:
            name = reader.net.nodes[key].name
            text = f"{name}: it gives {got} here and {shapes} in the file"
            found.report.append(("warning", text))

# SPDX-License-Identifier: Apache-2.0
"""A document as files that train and run: NNabla's .nnp and .nntxt, and every other format.

A file has three networks. Main is trained; MainValidation is as it is used and ends in the error
that is watched; MainRuntime ends in what the network says.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.console.documents.analysis import ends
from nnl.console.documents.building import Graph, build
from nnl.console.documents.document import Document, Invalid
from nnl.console.errors import Refused
from nnl.console.palette.palette import layers
from nnl.converters.formats import FORMATS, WriteOptions
from nnl.converters.networks.model import Built, Network
from nnl.converters.nnp.parameter_files import Stored, set_value
from nnl.converters.nnp.writer import save
from nnl.core.arguments.suggest import did_you_mean
from nnl.core.arrays.resources import memory_bytes
from nnl.core.graph.variable import Variable
from nnl.core.ops.random import seed
from nnl.core.settings.context import using
from nnl.solvers import learning_rate_scheduler as schedules

Shape = tuple[int, ...]
_DRAWING = Lock()  # the generator of first values is one for all threads
FILES = {"onnx": ".onnx", "nnlp": ".nnlp", "nnb": ".nnb", "tflite": ".tflite"}
CLASSES = ("softmax_cross_entropy", "categorical_cross_entropy")
YES_OR_NO = ("sigmoid_cross_entropy", "binary_cross_entropy")


@dataclass
class Data:
    """What is trained with: a file of samples.

    Attributes:
        csv: The file.
        shapes: Of its columns, by name.
        rows: How many samples it has.
    """

    csv: str
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    rows: int = 0


def checked(document: Document, graph: Graph) -> None:
    """Raise unless the document can be trained or run."""
    problems = [p for p in graph.problems() if p.severity == "error" and p.code != "upstream"]
    if problems:
        p = problems[0]
        name = document.networks[p.network].nodes[p.node].name if p.node else p.network
        raise Refused("invalid", f"{name}: {p.message}", "repair it in the editor", p.node)


def result(document: Document, graph: Graph) -> dict[str, Variable]:
    """What the network says, by name: likelihoods where the loss takes something else."""
    losses, outputs = ends(document, graph)
    net, known = document.main, layers()
    found: dict[str, Variable] = {}
    for key in outputs:
        v = graph.placed[(key,)].outputs
        if not v:
            continue
        compared = [e for e in net.edges if e.source == key and e.target in losses]
        kinds = [net.nodes[e.target] for e in compared]
        name, y = net.nodes[key].name, v[0]
        for loss in kinds:
            function = known[loss.type].function
            label = next((e for e in net.edges if e.target == loss.id and e not in compared), None)
            if label is not None:
                name = f"{net.nodes[label.source].name}'"
            if function == "softmax_cross_entropy":
                y = F.softmax(y, axis=_axis(loss.properties.get("axis"), y))
            elif function == "sigmoid_cross_entropy":
                y = F.sigmoid(y)
        found[name if name not in found else f"{name}_{len(found)}"] = y
    return found


def _axis(axis: Any, y: Variable) -> int:
    return len(y.shape) - 1 if axis is None else int(axis)


def errors(document: Document, graph: Graph) -> dict[str, Variable]:
    """What is watched while training: the share of wrong answers of a classifier, else the loss."""
    losses, _ = ends(document, graph)
    net, known = document.main, layers()
    into = net.into()
    found: dict[str, Variable] = {}
    for key in losses:
        node = net.nodes[key]
        layer = known.get(node.type)
        given = {e.name: graph.placed[(e.source,)].outputs[e.out] for e in into[key]}
        value = graph.placed[(key,)].outputs[0]
        ports = [p.name for p in layer.inputs] if layer is not None else []
        x, target = [given.get(name) for name in (*ports, "", "")[:2]]
        if layer is not None and x is not None and target is not None:
            if layer.function in CLASSES:
                axis = _axis(node.properties.get("axis"), x)
                value = F.top_n_error(x, target, axis=axis)
            elif layer.function in YES_OR_NO:
                y = F.sigmoid(x) if layer.function == "sigmoid_cross_entropy" else x
                value = F.binary_error(y, target)
        found["valid_error" if not found else f"valid_error_{len(found)}"] = value
    return found


class DocumentModel(Built):
    """A document as a model that every format is written from: what the network says."""

    def __init__(
        self,
        document: Document,
        columns: Mapping[str, Shape] | None = None,
        weights: Sequence[Stored] = (),
        name: str = "main",
    ) -> None:
        self.document, self.columns, self.weights = document, columns, weights
        self.where = name

    def network(self, batch_size: int | None = None, inference: bool = False) -> Network:
        scope = _scope(self.document, self.weights, self.columns)
        graph = build(self.document, batch_size or 1, True, self.columns, True, scope)
        checked(self.document, graph)
        with using(auto_forward=False):
            outputs = result(self.document, graph)
        used = _inputs_of(outputs.values(), graph)
        return Network("main", used, outputs, graph.scope)


def _inputs_of(outputs: Any, graph: Graph) -> dict[str, Variable]:
    """The inputs that these depend on."""
    from nnl.core.graph.node import capture

    read = {v.key for n in capture([y.edge for y in outputs]) for v in n.inputs if v is not None}
    return {name: v for name, v in graph.inputs.items() if v.edge.key in read}


def _scope(
    document: Document, weights: Sequence[Stored], columns: Mapping[str, Shape] | None
) -> OrderedDict[str, Any]:
    """A registry with those of these parameters that fit the network; it may have been edited.

    Raises:
        Refused: The network's parameters would leave no memory for anything else.
    """
    scope: OrderedDict[str, Any] = OrderedDict()
    wanted = build(document, columns=columns).parameters()
    size, most = sum(v.spec.nbytes for v in wanted.values()), memory_bytes() // 2
    if size > most:
        text = f"its parameters take {size / 2**30:.3g} GiB, wanted at most {most / 2**30:.3g} GiB"
        raise Refused("too_large", text, "make layers smaller")
    with nn.parameter_scope("", scope):
        for p in weights:
            if p.name not in wanted or wanted[p.name].shape != p.value.shape:
                continue
            v = Variable(p.value.shape, need_grad=True)
            set_value(v, p.value)
            nn.parameter.set_parameter(p.name, v)
    return scope


def export(
    document: Document,
    path: Path,
    train: Data | None = None,
    valid: Data | None = None,
    weights: Sequence[Stored] = (),
) -> None:
    """Write the network, by the extension; .nnp and .nntxt have the training as well."""
    train = train or Data("")
    kind = path.suffix.lower()
    if kind in (".nnp", ".nntxt"):
        write_training(document, path, train, valid, weights)
        return
    names = {extension: name for name, extension in FILES.items()}
    if kind not in names:
        wanted = ", ".join((".nnp", ".nntxt", *FILES.values()))
        raise Refused("unsupported", f"the extension is {kind!r}, wanted {wanted}")
    target = FORMATS[names[kind].upper()]
    size = -1 if kind == ".onnx" else 1
    model = DocumentModel(document, train.shapes, weights, path.stem)
    assert target.write is not None
    try:
        target.write(model, str(path), WriteOptions(size))
    except ValueError:
        if size != -1:
            raise
        target.write(model, str(path), WriteOptions(1))


def write_training(
    document: Document,
    path: Path,
    train: Data,
    valid: Data | None,
    weights: Sequence[Stored] = (),
    batch_size: int | None = None,
) -> Graph:
    """Write what `nnl train -c` takes; returns the graph that is trained.

    Args:
        weights: First values of parameters; the others are drawn with the configuration's seed.
    Raises:
        Refused: The document has an error, or no loss.
    """
    config = document.config
    batch = batch_size or whole(config, "batch_size", 1)
    scope = _scope(document, weights, train.shapes)
    with _DRAWING:
        seed(whole(config, "seed", 0))
        graph = build(document, batch, False, train.shapes, True, scope)
    checked(document, graph)
    losses, _ = ends(document, graph)
    net = document.main
    with using(auto_forward=False):
        loss = {net.nodes[k].name: graph.placed[(k,)].outputs[0] for k in losses}
        # Only full minibatches are measured: of a smaller set it would be none.
        measured = min(batch, valid.rows or batch) if valid is not None else batch
        test = build(document, measured, True, train.shapes, True, scope)
        watched = errors(document, test)
        run = build(document, batch, True, train.shapes, True, scope)
        said = result(document, run)
    networks = [
        _network("MainValidation", watched, test, measured),
        _network("MainRuntime", said, run, batch),
    ]
    contents: dict[str, Any] = {
        "global_config": {"default_context": context(config)},
        "training_config": {
            "max_epoch": whole(config, "max_epoch", 1),
            "iter_per_epoch": max(train.rows // batch, 1),
            "save_best": bool(config.get("save_best", True)),
            "monitor_interval": 1,
        },
        "networks": [n for n in networks if n["outputs"]],
        "executors": [],
    }
    if said:
        data = list(_inputs_of(said.values(), run))
        contents["executors"] = [
            {"name": "Executor", "network": "MainRuntime", "data": data, "output": list(said)}
        ]
    if loss:
        contents["networks"].insert(0, _network("Main", loss, graph, batch))
        _add_training(contents, document, graph, loss, watched, train, valid, (batch, measured))
    with nn.parameter_scope("", scope):
        save(path, contents)
    return graph


def _network(name: str, outputs: dict[str, Variable], graph: Graph, batch: int) -> dict[str, Any]:
    """An entry of a file, in which the results of nodes have the nodes' names."""
    names = _inputs_of(outputs.values(), graph) if outputs else {}
    taken = {v.edge.key for v in (*names.values(), *outputs.values())}
    for path, placed in graph.placed.items():
        node = placed.node
        if len(path) > 1 or node.type in ("Input", "Output", "Parameter") or not placed.outputs:
            continue
        key = placed.outputs[0].edge.key
        if node.name not in names and node.name not in outputs and key not in taken:
            names[node.name] = placed.outputs[0]
            taken.add(key)
    return {"name": name, "batch_size": batch, "outputs": outputs, "names": names}


def _add_training(
    contents: dict[str, Any],
    document: Document,
    graph: Graph,
    loss: dict[str, Variable],
    watched: dict[str, Variable],
    train: Data,
    valid: Data | None,
    batches: tuple[int, int],
) -> None:
    config = document.config
    columns = list(train.shapes) or list(graph.inputs)
    parts = {"Training": train} | ({"Validation": valid} if valid is not None else {})
    contents["datasets"] = [
        {
            "name": name,
            "uri": part.csv,
            "cache_dir": "",
            "variables": columns,
            "shuffle": name == "Training" and bool(config["dataset"].get("shuffle", True)),
            "batch_size": size,
        }
        for (name, part), size in zip(parts.items(), batches, strict=False)
    ]
    solver = make_solver(config["optimizer"])
    with nn.parameter_scope("", graph.scope):
        solver.set_parameters(nn.get_parameters())
    rate = solver.learning_rate()
    per_epoch = contents["training_config"]["iter_per_epoch"]
    steps = per_epoch * contents["training_config"]["max_epoch"]
    data = {n: n for n in _inputs_of(loss.values(), graph)}
    contents["optimizers"] = [
        {
            "name": "Optimizer",
            "solver": solver,
            "network": "Main",
            "dataset": "Training",
            "weight_decay": number(config["optimizer"], "weight_decay"),
            "scheduler": schedule(
                config["optimizer"].get("schedule") or {}, rate, steps, per_epoch
            ),
            "data_variables": data,
            "loss_variables": list(loss),
        }
    ]
    contents["monitors"] = []
    if valid is not None:
        for name in watched:
            given = {n: n for n in _inputs_of([watched[name]], graph)} or data
            contents["monitors"].append(
                {
                    "name": name,
                    "network": "MainValidation",
                    "dataset": "Validation",
                    "data_variables": given,
                    "monitor_variables": [name],
                }
            )


def context(config: Mapping[str, Any]) -> Any:
    """The context of a configuration: "cpu", "cudnn:0"."""
    from nnl.ext_utils import get_extension_context

    name, _, device = str(config.get("context") or "cpu").partition(":")
    try:
        return get_extension_context(name, device_id=device or "0")
    except (ValueError, NotImplementedError, ModuleNotFoundError) as error:
        raise Refused("unsupported", f"the context {name!r}: {error}", "choose another") from None


def make_solver(optimizer: Mapping[str, Any]) -> Any:
    """The solver of a configuration."""
    kinds = solvers()
    name = optimizer.get("type")
    if name not in kinds:
        hint = did_you_mean(str(name), kinds)
        raise Invalid(f"there is no optimizer {name!r}{hint}", "config.optimizer.type")
    try:
        return kinds[name](**optimizer.get("properties") or {})
    except (TypeError, ValueError) as error:
        raise Invalid(str(error), "config.optimizer.properties") from None


def solvers() -> dict[str, Any]:
    """Solvers by name."""
    names = [n for n in S.__all__ if n not in ("Solver", "SolverState")]
    return {n: getattr(S, n) for n in names if inspect.isclass(getattr(S, n, None))}


def schedule(given: Mapping[str, Any], rate: float, steps: int, per_epoch: int) -> Any:
    """The schedule of the learning rate, None for none. Epochs in it become iterations."""
    kind = given.get("type", "none")
    where = "config.optimizer.schedule"
    if kind == "none":
        return None
    if kind == "cosine":
        return schedules.CosineScheduler(rate, steps)
    if kind == "poly":
        return schedules.PolynomialScheduler(rate, steps, number(given, "power", 1.0, where))
    gamma = number(given, "gamma", 0.1 if kind == "step" else 0.95, where)
    if kind == "exponential":
        return schedules.ExponentialScheduler(rate, gamma, per_epoch)
    if kind == "step":
        epochs = given.get("epochs") or []
        if not isinstance(epochs, list) or not all(type(e) is int and e > 0 for e in epochs):
            raise Invalid(f"epochs is {epochs!r}, wanted epochs", where)
        return schedules.StepScheduler(rate, gamma, [e * per_epoch for e in epochs])
    kinds = "none, step, cosine, poly or exponential"
    raise Invalid(f"its type is {kind!r}, wanted {kinds}", where)


def number(
    given: Mapping[str, Any], key: str, default: float = 0.0, where: str = "config"
) -> float:
    """A number of a configuration."""
    value = given.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Invalid(f"it is {value!r}, wanted a number", f"{where}.{key}")
    return float(value)


def whole(given: Mapping[str, Any], key: str, least: int, where: str = "config") -> int:
    """A whole number of a configuration."""
    value = given.get(key)
    if type(value) is not int or value < least:
        raise Invalid(f"it is {value!r}, wanted a whole number >= {least}", f"{where}.{key}")
    return value

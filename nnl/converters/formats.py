# SPDX-License-Identifier: Apache-2.0
"""The file formats of networks: which extension is read and written by what.

A format is one entry of FORMATS. A reader gives a Model, which builds its graph for a batch size
and gives itself as NNabla's messages; a writer takes one.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nnl.converters.nnp.archive import Content, read_files
from nnl.converters.nnp.building import NewParameters, build_networks
from nnl.converters.nnp.content import (
    expanded,
    functions_of,
    interface,
    network_of,
    with_executor,
    write_content,
)
from nnl.converters.nnp.function_messages import op_of_type, visible_inputs
from nnl.converters.nnp.network_pass import NnpNetworkPass
from nnl.converters.nnp.network_reader import MAX_ELEMENTS
from nnl.converters.nnp.parameter_files import Stored
from nnl.converters.nnp.writer import create_proto
from nnl.converters.open_batch import at_two_sizes, merged
from nnl.converters.weights import EXTENSIONS
from nnl.core.context import using
from nnl.core.graph import capture
from nnl.core.op import OPS
from nnl.core.parameter import (
    get_parameter,
    get_parameters,
    parameter_scope,
    set_parameter,
)
from nnl.core.variable import Variable, forward_all

logger = logging.getLogger("nnl")


@dataclass
class Network:
    """A graph for one batch size.

    Attributes:
        name: Its name.
        inputs, outputs: Variables by name.
        parameters: The registry that its parameters are in.
    """

    name: str
    inputs: dict[str, Variable]
    outputs: dict[str, Variable]
    parameters: OrderedDict[str, Any] = field(default_factory=OrderedDict)

    def run(self, values: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """The outputs for values of the inputs."""
        for name, v in self.inputs.items():
            v.d = values[name]
        forward_all(list(self.outputs.values()))
        return {name: v.d.copy() for name, v in self.outputs.items()}


class Model:
    """A file, read. A subclass gives `content` and `network`.

    Attributes:
        where: The files, for messages.
    """

    where = ""

    def content(self, batch_size: int | None = None) -> Content:
        """As NNabla's messages.

        Args:
            batch_size: The file's own if None.
        Raises:
            NotImplementedError: A function has no type in .nnp files.
            ValueError: The file's batch size is fixed, and another one.
        """
        raise NotImplementedError(f"{type(self).__name__}: define content()")

    def network(self, batch_size: int | None = None, inference: bool = False) -> Network:
        """The graph, in a parameter registry of its own.

        Args:
            batch_size: The file's own if None.
            inference: Dropout does nothing, batch normalisation uses the running statistics.
        """
        raise NotImplementedError(f"{type(self).__name__}: define network()")


class NnpModel(Model):
    """NNabla's messages; the first executor chooses inputs and outputs."""

    def __init__(self, content: Content) -> None:
        self._content, self.where = content, content.where

    def content(self, batch_size: int | None = None) -> Content:
        content = self._content
        if batch_size is None:
            return content
        proto = type(content.proto)()
        proto.CopyFrom(content.proto)
        for network in proto.network:
            if not _is_open(network) and network.batch_size not in (0, batch_size):
                raise ValueError(
                    f"{self.where}: the network {network.name!r} has the fixed batch size "
                    f"{network.batch_size}, so it cannot be {batch_size}"
                )
            network.batch_size = batch_size
        return replace(content, proto=proto)

    def network(self, batch_size: int | None = None, inference: bool = False) -> Network:
        content = self._content
        if content.proto.executor:
            content = with_executor(expanded(content), 0)
        message = network_of(content)
        change = NnpNetworkPass()
        if inference:
            change.set_batch_normalization_batch_stat_all(False)
            change.on_generate_function_by_type("Dropout")(_without_dropout)
        if batch_size is None:
            batch_size = message.batch_size or 1
        _, outputs = interface(content)
        scope: OrderedDict[str, Any] = OrderedDict()
        with parameter_scope("", scope), using(auto_forward=False):
            parameters = NewParameters(content.stored, self.where, keep=True)
            built = build_networks(content, [message.name], batch_size, parameters, change)
            parameters.commit()
        network = built[message.name]
        drawn = [n for n in parameters.variables if n not in parameters.stored]
        if drawn:
            logger.warning(
                "%s: the files have no values of %d parameters, %s: they are initial ones",
                self.where,
                len(drawn),
                ", ".join(drawn[:3]) + (" ..." if len(drawn) > 3 else ""),
            )
        inputs = {n: v.variable_instance for n, v in network.inputs.items()}
        ends = {n: network.variable(n, self.where).variable_instance for n in outputs}
        return Network(message.name, inputs, ends, scope)


def _is_open(network: Any) -> bool:
    """Whether a network message leaves its batch size open."""
    return any(-1 in v.shape.dim for v in network.variable)


def _without_dropout(f: Any) -> None:
    f.proto.dropout_param.p = 0.0


class OnnxFile(Model):
    """An ONNX model; unknown sizes of inputs are the batch size on the first axis, else 1."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        from nnl.converters.onnx.importer import load

        self._model, self.where = load(path), str(path)

    def network(self, batch_size: int | None = None, inference: bool = False) -> Network:
        infos = {v.name: v for v in self._model.infos}
        scope: OrderedDict[str, Any] = OrderedDict()
        inputs = {}
        for name in self._model.inputs:
            info = infos[name]
            if info.kind != "tensor" or info.shape is None:
                raise ValueError(f"{self.where}: the input {name!r} has no shape")
            sizes = enumerate(info.shape)
            shape = [
                (batch_size or 1 if i == 0 else 1) if type(n) is not int else n for i, n in sizes
            ]
            if math.prod(n or 1 for n in shape) > MAX_ELEMENTS:
                raise ValueError(
                    f"{self.where}: the input {name!r} has the impossible shape {shape}"
                )
            inputs[name] = x = Variable(shape)  # takes no memory yet
            x.data.set_spec(x.spec.with_dtype(np.float32 if info.dtype is None else info.dtype))
        with parameter_scope("", scope), using(auto_forward=False):
            result = self._model(**inputs)
        values = result if isinstance(result, tuple) else (result,)
        outputs = dict(zip(self._model.outputs, values, strict=True))
        for name, y in outputs.items():
            if not isinstance(y, Variable):
                raise ValueError(f"{self.where}: the output {name!r} does not depend on the inputs")
        return Network(self._model.model.graph.name or "network", inputs, outputs, scope)

    def content(self, batch_size: int | None = None) -> Content:
        try:
            first, second = at_two_sizes(self)
            proto, stored = self._messages(first)
            proto = merged(proto, self._messages(second)[0], self.where)
            proto.network[0].batch_size = batch_size or 1
            content = Content(self.where, proto, stored)
            NnpModel(content).network(batch_size)
        except ValueError as error:
            network = self.network(batch_size)
            proto, stored = self._messages(network)
            fixed = proto.network[0].batch_size
            logger.warning("%s: the batch size is fixed at %d: %s", self.where, fixed, error)
            content = Content(self.where, proto, stored)
        return content

    def _messages(self, network: Network) -> tuple[Any, list[Stored]]:
        """A network as NNabla's message, and its parameters."""
        sizes = [v.shape[0] for v in network.inputs.values() if v.shape]
        entry: dict[str, Any] = {
            "name": network.name,
            "batch_size": sizes[0] if sizes else 1,
            "names": network.inputs,
            "outputs": network.outputs,
        }
        executor = {"name": "runtime", "network": network.name}
        executor["data"] = list(network.inputs)  # type: ignore[assignment]
        executor["output"] = list(network.outputs)  # type: ignore[assignment]
        with parameter_scope("", network.parameters):
            _keep_constants(network)
            parameters = get_parameters(grad_only=False)
            stored = [Stored(k, v.data.read("host"), v.need_grad) for k, v in parameters.items()]
            contents = {"networks": [entry], "executors": [executor]}
            return create_proto(contents, variable_batch_size=False), stored


def _keep_constants(network: Network) -> None:
    """Register arrays in the graph that are neither inputs nor parameters, which messages have no
    place for, as parameters without gradient."""
    parameters = get_parameters(grad_only=False)
    known = {v.edge.key for v in (*network.inputs.values(), *parameters.values())}
    count = 0
    for node in capture([v.edge for v in network.outputs.values()]):
        for v in visible_inputs(node):
            if v.node is None and v.key not in known:
                known.add(v.key)
                while get_parameter(f"constants/{count}") is not None:
                    count += 1
                set_parameter(f"constants/{count}", Variable.on(v))


@dataclass(frozen=True)
class WriteOptions:
    """What a writer may be told; each uses what its format has.

    Attributes:
        batch_size: None keeps the file's, -1 leaves it open where the format can.
        version: Of the operators or the format, None for the writer's default.
        parameters: Of .nnp: format of the parameters, None for none.
        ir_version: Of ONNX: version of the file format, None for the oldest that fits.
        further: Of .nnlp: more batch sizes, each for a program of its own.
        level: Of .nnb: API level of the runtime, None for the newest one that is published.
    """

    batch_size: int | None = None
    version: int | None = None
    parameters: str | None = ".protobuf"
    ir_version: int | None = None
    further: tuple[int, ...] = ()
    level: int | None = None


@dataclass(frozen=True)
class Format:
    """One file format.

    Attributes:
        name: As -I and -O name it.
        title: For people.
        extensions: Those of its files, the first one is the usual one.
        read: Paths -> Model, or None.
        write: Model, path, options -> nothing, or None.
        functions: Types of NNabla's functions that it can hold; None for all.
        operators: Model, version -> what its functions become, sorted; None where they keep their
            types.
    """

    name: str
    title: str
    extensions: tuple[str, ...]
    read: Callable[[Sequence[str]], Model] | None = None
    write: Callable[[Model, str, WriteOptions], None] | None = None
    functions: Callable[[], Collection[str]] | None = None
    operators: Callable[[Model, int | None], list[str]] | None = None


def _read_nnp(paths: Sequence[str]) -> Model:
    return NnpModel(read_files(list(paths), "", "nnl"))


def _read_onnx(paths: Sequence[str]) -> Model:
    if len(paths) != 1:
        raise ValueError(f"an ONNX model is one file, got {len(paths)}: {', '.join(paths)}")
    return OnnxFile(paths[0])


def _write_nnp(model: Model, path: str, options: WriteOptions) -> None:
    if options.version is not None:
        raise ValueError("the format NNP has no versions to choose from: leave -d out")
    size = options.batch_size
    if size is not None and size < 1 and size != -1:
        raise ValueError(f"the batch size is {size}, wanted at least 1, or -1")
    content = model.content(None if size == -1 else size)
    if size == -1 and not all(_is_open(n) for n in content.proto.network):
        raise ValueError(f"{content.where}: the batch size is fixed, so -1 cannot leave it open")
    write_content(path, content, options.parameters)


def _write_onnx(model: Model, path: str, options: WriteOptions) -> None:
    from nnl.converters.onnx.exporter import save

    size = options.batch_size
    if size is not None and size < 1 and size != -1:
        raise ValueError(f"the batch size is {size}, wanted at least 1, or -1 to leave it open")
    if size == -1:
        network, other = at_two_sizes(model)
    else:
        network, other = model.network(size), None
    with parameter_scope("", network.parameters):
        save(
            path,
            network.outputs,
            network.inputs,
            opset=options.version,
            ir_version=options.ir_version,
            batch="N" if size == -1 else None,
            name=network.name,
            elsewhere=other,
        )


def _write_programs(model: Model, path: str, options: WriteOptions) -> None:
    from nnl.converters.programs import write_programs

    write_programs(model, path, options)


def _read_nnb(paths: Sequence[str]) -> Model:
    from nnl.converters.nnb.reader import read

    if len(paths) != 1:
        raise ValueError(f"an NNB model is one file, got {len(paths)}: {', '.join(paths)}")
    return NnpModel(read(paths[0]))


def _write_nnb(model: Model, path: str, options: WriteOptions) -> None:
    from nnl.converters.nnb.writer import save

    size = options.batch_size
    if size is not None and size < 1:
        raise ValueError(f"the batch size is {size}, wanted at least 1: NNB has a fixed one")
    save(path, model.network(size or 1, inference=True), options.level, options.version)


def _nnb_functions() -> set[str]:
    from nnl.converters.nnb.writer import functions

    return functions()


def _onnx_functions() -> set[str]:
    from nnl.converters.onnx.export_table import export_rows, own_functions

    return {OPS[name].nnp for name, since, _ in export_rows() if since} | own_functions()


def _onnx_operators(model: Model, version: int | None) -> list[str]:
    """As ONNX names them: Operator@version, the version that gave it its present form."""
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        _write_onnx(model, path, WriteOptions(1, version))
        written = onnx.load(path, load_external_data=False)
    versions = {o.domain or "ai.onnx": o.version for o in written.opset_import}
    graphs, found = [written.graph, *written.functions], set()
    for graph in graphs:
        for node in graph.node:
            graphs += [g for a in node.attribute for g in (a.g, *a.graphs) if g.node]
            domain = node.domain or "ai.onnx"
            if domain == "ai.onnx":
                schema = onnx.defs.get_schema(node.op_type, versions[domain])
                found.add(f"{node.op_type}@{schema.since_version}")
    return sorted(found)


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format(
            "NNP",
            "NNabla",
            (".nnp", ".nntxt", ".prototxt", ".protobuf", ".h5"),
            _read_nnp,
            _write_nnp,
            op_of_type,
        ),
        Format(
            "ONNX", "ONNX", (".onnx",), _read_onnx, _write_onnx, _onnx_functions, _onnx_operators
        ),
        Format("NNB", "NNabla's C runtime", (".nnb",), _read_nnb, _write_nnb, _nnb_functions),
        Format("NNLP", "programs of nnl", (".nnlp",), write=_write_programs),
    )
}


# Formats of NNabla's converter that nnl neither reads nor writes, with their extensions.
NOT_HERE = {
    "TF_PB": (".pb",),
    "TF_CKPT_V1": (".ckpt",),
    "TF_CKPT_V2": (".meta",),
    "TFLITE": (".tflite",),
}


def is_programs(path: str) -> bool:
    """Whether a file has programs, which are no networks, by its extension."""
    return path.lower().endswith(FORMATS["NNLP"].extensions)


def _why_not(extension: str) -> str:
    """What to add to an error about an extension that belongs to something else."""
    if is_programs(extension):
        return (
            ". Steps of programs may be fused, so they become no other format: convert what this "
            "was made from; nnl view, nnl infer and nnl.load_program read it"
        )
    if extension in EXTENSIONS:
        return ": such a file has weights and no network, nnl.converters.weights reads them"
    known = next((n for n, e in NOT_HERE.items() if extension in e), None)
    return "" if known is None else f": nnl does not have the format {known}"


def format_of(path: str, named: str | None, writing: bool) -> Format:
    """The format of a file by its extension; by its name where the extension says nothing.

    Raises:
        ValueError: The extension or the name is unknown, they contradict each other, or the format
            cannot be read or written.
    """
    verb = "write" if writing else "read"
    usable = {n: f for n, f in FORMATS.items() if (f.write if writing else f.read) is not None}
    extension = os.path.splitext(path)[1].lower()
    by_extension = next((f for f in usable.values() if extension in f.extensions), None)
    if named is not None:
        if named not in usable:
            raise ValueError(f"cannot {verb} the format {named!r}, only {', '.join(usable)}")
        if by_extension is not None and by_extension.name != named:
            raise ValueError(
                f"{path} has the extension of {by_extension.name}, but {named} was asked for"
            )
        return usable[named]
    if by_extension is None or (writing and extension == ".h5"):
        known = [e for f in usable.values() for e in f.extensions if not writing or e != ".h5"]
        raise ValueError(
            f"{path}: cannot {verb} the extension {extension!r}, only {', '.join(known)}"
            f"{_why_not(extension)}"
        )
    return by_extension


def read_model(paths: Sequence[str], named: str | None = None) -> tuple[Model, Format]:
    """Read one file, or several that belong together (.nntxt and .h5).

    Raises:
        ValueError: The files are of several formats, or of an unknown one.
    """
    formats = {f.name: f for f in (format_of(p, named, False) for p in paths)}
    if len(formats) != 1:
        raise ValueError(f"the files are of several formats: {', '.join(sorted(formats))}")
    (found,) = formats.values()
    if found.read is None:
        raise ValueError(f"cannot read the format {found.name}")
    return found.read(paths), found


def unsupported(model: Model, target: Format) -> list[str]:
    """Functions in the model that a format cannot hold, sorted: NNabla's types, or the names of
    nnl's own functions, which have no type."""
    if target.functions is None:
        return []
    if isinstance(model, NnpModel):
        content = expanded(model.content())
        used = {f.type for f in functions_of(content, network_of(content))}
        return sorted(used - set(target.functions()))
    if target.name != "NNP":
        return []  # the writer names all of them
    nodes = capture([v.edge for v in model.network().outputs.values()])
    return sorted({n.op.name for n in nodes if not n.op.nnp and n.op.name != "store"})

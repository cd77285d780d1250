# SPDX-License-Identifier: Apache-2.0
"""The file formats of networks: which extension is read and written by what.

A format is one entry of FORMATS: a reader gives a Model, a writer takes one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from nnl.converters.networks.lowering import CannotLower, Target, lower
from nnl.converters.networks.model import Model, Network, NnpModel, OnnxFile, TensorFlowGraph
from nnl.converters.nnp.archive import read_files
from nnl.converters.nnp.content import expanded, functions_of, network_of
from nnl.converters.nnp.function_messages import op_of_type
from nnl.converters.nnp.writer import write_content
from nnl.converters.runtimes import others
from nnl.converters.weights import EXTENSIONS
from nnl.core.graph.node import capture
from nnl.core.ops.op import OPS
from nnl.core.parameters.parameter import parameter_scope


@dataclass(frozen=True)
class WriteOptions:
    """What a writer may be told; each uses what its format has.

    Attributes:
        batch_size: None keeps the source's, -1 leaves it open where the format can.
        version: Of the operators or the format, None for the writer's default.
        parameters: Of .nnp: format of the parameters, None for none.
        ir_version: Of ONNX: version of the file format, None for the oldest that fits.
        further: Of .nnlp: more batch sizes, each for a program of its own.
        level: Of .nnb: API level of the runtime, None for the newest one that is published.
        types: Of .nnb: types of variables by name.
        default_type: Of .nnb: the type of variables that `types` leaves out.
        weights_file: Of C source: weights are a file that the program loads.
        dataset: File of samples whose ranges 8 bits have, None for float32.
        precision: Of .nnlp: "bf16" for weights and results of products in 16 bits.
    """

    batch_size: int | None = None
    version: int | None = None
    parameters: str | None = ".protobuf"
    ir_version: int | None = None
    further: tuple[int, ...] = ()
    level: int | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    default_type: str = "FLOAT32"
    weights_file: bool = False
    dataset: str | None = None
    precision: str = "float32"


@dataclass(frozen=True)
class Format:
    """One file format.

    Attributes:
        name: As -I and -O name it.
        title: For people.
        extensions: Those of its files, the first one is the usual one; none for a folder.
        read: Paths -> Model, or None.
        write: Model, path, options -> nothing, or None.
        functions: Types of NNabla's functions that it can hold; None for all.
        operators: Model, version -> what functions become, sorted; None: they keep their types.
        runtime: File, its name in messages -> what its users run it with; None: not installed.
        target: What networks are lowered for; `functions` is left out then, and
            `write` names everything that the format cannot hold.
        opens: Whether files can leave any size open.
        claims: Paths -> whether files of an extension that another format has too are its own.
    """

    name: str
    title: str
    extensions: tuple[str, ...]
    read: Callable[[Sequence[str]], Model] | None = None
    write: Callable[[Model, str, WriteOptions], None] | None = None
    functions: Callable[[], Collection[str]] | None = None
    operators: Callable[[Model, int | None], list[str]] | None = None
    runtime: Callable[[str, str], others.Runtime | None] | None = None
    target: Callable[[], Target] | None = None
    opens: bool = False
    claims: Callable[[Sequence[str]], bool] | None = None

    def known(self) -> set[str] | None:
        """Types of NNabla's functions that it can hold, if not with all arguments; None for all."""
        if self.target is not None:
            from nnl.converters.coverage import types_said

            return types_said(self.target())
        return None if self.functions is None else set(self.functions())

    def refused(self, model: Model) -> list[str]:
        """Functions of a model that it cannot hold, with their places and reasons."""
        if self.target is None:
            return unsupported(model, self)
        try:
            lower(model.network(inference=True), self.target())
        except CannotLower as error:
            return list(error.problems)
        return []

    def parts(self, model: Model) -> list[str] | None:
        """What the functions of a model become, sorted; None where they keep their types."""
        if self.operators is not None:
            return self.operators(model, None)
        if self.target is None:
            return None
        nodes = lower(model.network(inference=True), self.target()).nodes
        return sorted({n.op.nnp or n.op.name for n in nodes})


def _later(module: str, name: str) -> Callable[..., Any]:
    """A function, or what one without arguments gives, of a module that is imported when it is
    called."""

    def call(*args: Any) -> Any:
        found = getattr(import_module(f"nnl.converters.{module}"), name)
        return found(*args) if callable(found) else found

    return call


def _read_nnp(paths: Sequence[str]) -> Model:
    return NnpModel(read_files(list(paths), "", "nnl"))


def _alone(read: Callable[[str], Model]) -> Callable[[Sequence[str]], Model]:
    """A reader of models that are one file, or one folder."""

    def reader(paths: Sequence[str]) -> Model:
        if len(paths) != 1:
            raise ValueError(f"such a model is one file, got {len(paths)}: {', '.join(paths)}")
        return read(paths[0])

    return reader


@_alone
def _read_tensorflow(path: str) -> Model:
    from nnl.converters.tensorflow.saved import load_any

    return TensorFlowGraph(load_any(path), path)


def _tensorflow(name: str, how: str) -> Callable[[Model, str, WriteOptions], None]:
    """What writes a format of TensorFlow by a function of its writer."""

    def write(model: Model, path: str, options: WriteOptions) -> None:
        from nnl.converters.tensorflow.writing import writer

        getattr(writer, how)(path, _of_one_size(model, options, name, writer.TARGET))

    return write


def _pb_operators(model: Model, version: int | None) -> list[str]:
    from nnl.converters.tensorflow.writing.writer import graph_def

    nodes = graph_def(model.network(1, inference=True)).node
    return sorted({n.op for n in nodes if n.op not in ("Const", "Placeholder")})


def _write_nnp(model: Model, path: str, options: WriteOptions) -> None:
    if options.version is not None:
        raise ValueError("the format NNP has no versions to choose from: leave -d out")
    size = options.batch_size
    if size is not None and size < 1 and size != -1:
        raise ValueError(f"the batch size is {size}, wanted at least 1, or -1")
    write_content(path, model.content(size), options.parameters)


def _write_onnx(model: Model, path: str, options: WriteOptions) -> None:
    from nnl.converters.onnx.exporting.exporter import save, save_model

    size = options.batch_size
    if size is not None and size < 1 and size != -1:
        raise ValueError(f"the batch size is {size}, wanted at least 1, or -1 to leave it open")
    if size == -1:
        return save_model(path, model, options.version, options.ir_version)
    how = {"opset": options.version, "ir_version": options.ir_version}
    network = with_bits(model.network(size, inference=options.dataset is not None), options)
    with parameter_scope("", network.parameters):
        save(path, network.outputs, network.inputs, batch=None, name=network.name, **how)


def with_bits(network: Network, options: WriteOptions) -> Network:
    """A network with the products in 8 bits, if a data set for that is given."""
    if options.dataset is None:
        return network
    from nnl.converters.quantizing import quantize

    return quantize(network, _samples(options.dataset, network))


@_alone
def _read_nnb(path: str) -> Model:
    from nnl.converters.nnb.reader import read

    return NnpModel(read(path))


def _write_nnb(model: Model, path: str, options: WriteOptions) -> None:
    from nnl.converters.nnb.writer import save

    size = options.batch_size
    if size is not None and size < 1:
        raise ValueError(f"the batch size is {size}, wanted at least 1: NNB has a fixed one")
    network = model.network(size, inference=True)
    save(path, network, options.level, options.version, options.types, options.default_type)


def _of_one_size(
    model: Model, options: WriteOptions, name: str, opens: Target | None = None
) -> Any:
    """The network for the batch size of a format without versions; its operators if it `opens`."""
    if options.version is not None:
        raise ValueError(f"the format {name} has no versions to choose from: leave -d out")
    if options.batch_size == -1 and opens is not None:
        from nnl.converters.tflite.writer import emitted_open

        return emitted_open(model, opens)
    size = options.batch_size
    if size is not None and size < 1:
        wanted = "or -1 to leave it open" if opens else f"{name} has a fixed one"
        raise ValueError(
            f"the batch size is {size}, wanted at least 1{',' if opens else ':'} {wanted}"
        )
    return model.network(size or 1, inference=True)


def _write_tflite(model: Model, path: str, options: WriteOptions) -> None:
    from nnl.converters.tflite.writer import TARGET, save

    network = _of_one_size(model, options, "TFLITE", None if options.dataset else TARGET)
    save(path, network, _samples(options.dataset, network))


def _samples(file: str | None, network: Network) -> dict[str, Any] | None:
    from nnl.converters.networks.samples import read_samples

    return None if file is None else read_samples(file, network)


def cost_of_bits(model: Model, path: str, target: Format, options: WriteOptions) -> str | None:
    """What 8 bits cost, in words; None where a file has others, or where nothing runs it."""
    runtime = None if target.runtime is None else target.runtime(path, os.path.basename(path))
    if options.dataset is None or (runtime is None and target.name != "TFLITE"):
        return None
    from nnl.converters.tflite.calibration import accuracy

    network = model.network(options.batch_size or 1, inference=True)
    return str(accuracy(network, path, _samples(options.dataset, network) or {}, runtime))


def _tflite_operators(model: Model, version: int | None) -> list[str]:
    from nnl.converters.tflite.writer import emitted

    network = _of_one_size(model, WriteOptions(1, version), "TFLITE")
    return sorted({op.name for op in emitted(network).ops})


def _write_csrc(model: Model, path: str, options: WriteOptions) -> None:
    from nnl.converters.csrc.writer import save, save_open

    if options.batch_size == -1 and options.dataset is None:
        return save_open(path, model, options.weights_file)
    network = _of_one_size(model, options, "CSRC")
    save(path, network, options.weights_file, _samples(options.dataset, network))


def _onnx_functions() -> set[str]:
    from nnl.converters.onnx.exporting.table import export_rows, own_functions

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
            "ONNX",
            "ONNX",
            (".onnx",),
            _alone(OnnxFile),
            _write_onnx,
            _onnx_functions,
            _onnx_operators,
            others.in_onnxruntime,
            opens=True,
        ),
        Format(
            "NNB",
            "NNabla's C runtime",
            (".nnb",),
            _read_nnb,
            _write_nnb,
            runtime=others.in_nnablart,
            target=_later("nnb.target", "target"),
        ),
        Format(
            "CSRC",
            "C source",
            (),
            write=_write_csrc,
            runtime=_later("runtimes.compiled_c", "compiled"),
            target=_later("csrc.target", "target"),
            opens=True,
        ),
        Format(
            "TFLITE",
            "TensorFlow Lite",
            (".tflite",),
            _alone(_later("tflite.reader", "TfliteFile")),
            _write_tflite,
            operators=_tflite_operators,
            runtime=others.in_litert,
            target=_later("tflite.writer", "TARGET"),
            opens=True,
        ),
        Format(
            "TF_PB",
            "TensorFlow",
            (".pb",),
            _read_tensorflow,
            _tensorflow("TF_PB", "save"),
            operators=_pb_operators,
            runtime=others.in_tensorflow,
            target=_later("tensorflow.writing.writer", "TARGET"),
            opens=True,
        ),
        Format("TF_CKPT_V1", "TensorFlow", (".ckpt",), _read_tensorflow),
        Format(
            "TF_CKPT_V2",
            "TensorFlow",
            (".meta",),
            _read_tensorflow,
            _tensorflow("TF_CKPT_V2", "save_meta"),
            runtime=others.in_tensorflow,
            target=_later("tensorflow.writing.writer", "TARGET"),
            opens=True,
        ),
        Format(
            "SAVED_MODEL",
            "TensorFlow",
            (),
            _read_tensorflow,
            _tensorflow("SAVED_MODEL", "save_folder"),
            runtime=others.in_tensorflow,
            target=_later("tensorflow.writing.writer", "TARGET"),
            opens=True,
        ),
        Format(
            "NNLP",
            "programs of nnl",
            (".nnlp",),
            write=_later("programs", "write_programs"),
            opens=True,
        ),
    )
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
    if not extension:
        return "; folders have none, their format is named by -O"
    return ""


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
    known = is_programs(path) or by_extension is not None
    if not writing and not known and os.path.isdir(path):
        return FORMATS["SAVED_MODEL"]
    if by_extension is None or (writing and extension == ".h5"):
        possible = [e for f in usable.values() for e in f.extensions if not writing or e != ".h5"]
        raise ValueError(
            f"{path}: cannot {verb} the extension {extension!r}, only {', '.join(possible)}"
            f"{_why_not(extension)}"
        )
    return by_extension


def read_model(paths: Sequence[str], named: str | None = None) -> tuple[Model, Format]:
    """Read one file, or several that belong together (.nntxt and .h5).

    Raises:
        ValueError: The files are of several formats, or of an unknown one.
    """
    own = {n: f for n, f in FORMATS.items() if f.claims is not None and f.claims(paths)}
    formats = own if named is None else {}
    formats = formats or {f.name: f for f in (format_of(p, named, False) for p in paths)}
    if len(formats) != 1:
        raise ValueError(f"the files are of several formats: {', '.join(sorted(formats))}")
    (found,) = formats.values()
    if found.read is None:
        raise ValueError(f"cannot read the format {found.name}")
    return found.read(paths), found


def unsupported(model: Model, target: Format) -> list[str]:
    """Functions that a format cannot hold, sorted, by type or by name; none if its writer tells."""
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

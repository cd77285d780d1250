# SPDX-License-Identifier: Apache-2.0
"""nnl convert: from one format to another, whole or in parts."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from nnl.cli.errors import UsageError
from nnl.cli.networks.verify import largest_gap
from nnl.converters.formats import (
    FORMATS,
    Format,
    WriteOptions,
    cost_of_bits,
    format_of,
    read_model,
    unsupported,
)
from nnl.converters.networks.model import Model, NnpModel
from nnl.converters.networks.open_networks import more_than_batch
from nnl.converters.networks.open_sizes import words
from nnl.converters.nnp.content import (
    expanded,
    functions_of,
    interface,
    network_of,
    with_executor,
    with_functions,
)
from nnl.core.parameters.atomic import replacing

logger = logging.getLogger("nnl")


def add_commands(commands: Any) -> None:
    """Register the command."""
    p = commands.add_parser(
        "convert",
        description="Convert FILE..., which belong together, to OUTPUT. The extension names the "
        "format. OUTPUT appears when it is complete and is replaced only by a good one.",
    )
    p.add_argument("files", nargs="+", metavar="FILE", help="input files, then OUTPUT")
    names = ", ".join(sorted(FORMATS))
    for letter, option, which in (("-I", "import", "input"), ("-O", "export", "output")):
        p.add_argument(
            letter,
            f"--{option}-format",
            choices=sorted(FORMATS),
            metavar="FORMAT",
            help=f"format of the {which}: {names}",
        )
    p.add_argument("-f", "--force", action="store_true", help="accepted; OUTPUT is overwritten")
    p.add_argument("--channel-last", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--nnp-version", help=argparse.SUPPRESS)
    p.add_argument(
        "-b",
        "--batch-size",
        type=_batch_sizes,
        metavar="N",
        help="batch size of the result; -1 leaves it open; 1,8 writes two programs into one .nnlp "
        "(default: NNP keeps its own, others 1)",
    )
    p.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="X=1,3,640,640",
        help="sizes of an input that the file leaves open; a name leaves one open",
    )
    p.add_argument(
        "--open",
        action="append",
        default=[],
        metavar="X=batch,3,height:32..4096:32,width",
        help="names of open sizes of an input, each with least, greatest and multiple where "
        "that is known; without it those that the file leaves open",
    )
    p.add_argument("--max-trips", type=int, metavar="N", help="of loops of ONNX that values end")
    p.add_argument(
        "-E",
        "--nnp-import-executor-index",
        type=int,
        metavar="I",
        help="keep only what executor I needs",
    )
    p.add_argument(
        "--inputs",
        metavar="A,B",
        help="take the part of the network that begins at these variables",
    )
    p.add_argument(
        "--outputs", metavar="A,B", help="take the part of the network that ends at these variables"
    )
    p.add_argument(
        "-S",
        "--split",
        metavar="A-B,C-",
        help="write ranges of functions as networks of their own, OUTPUT_A_B.ext",
    )
    p.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        help="list of allowed functions, one per line, ';' before comments: others cut the "
        "network into parts as -S does. Operator@version allows what becomes only those",
    )
    p.add_argument(
        "-d",
        "--define_version",
        metavar="VERSION",
        help="version of the target: opset_N or N for ONNX",
    )
    p.add_argument(
        "--ir_version",
        type=int,
        metavar="N",
        help="ONNX: version of the file format (default: the oldest that has the operators)",
    )
    p.add_argument(
        "--api",
        type=int,
        metavar="LEVEL",
        help="NNB: API level of the runtime that will read it (default: 44, the newest published)",
    )
    p.add_argument(
        "-T",
        "--default-variable-type",
        metavar="TYPE",
        help="NNB: type of variables that the settings leave out: FLOAT32, FIXED16_N or FIXED8_N "
        "with N bits after the point (default: FLOAT32)",
    )
    p.add_argument(
        "-s",
        "--settings",
        metavar="FILE",
        help="NNB: types of variables, as YAML; nnl nnb_template writes one to edit",
    )
    p.add_argument(
        "--weights-file", action="store_true", help="CSRC: weights in a file of their own"
    )
    p.add_argument("--precision", default="float32", help="NNLP: bf16 for 16 bits, half the size")
    p.add_argument(
        "--quantization",
        action="store_true",
        help="ONNX, NNLP, TFLITE, CSRC: in 8 bits, with the ranges that numbers take on --dataset",
    )
    p.add_argument(
        "--dataset",
        metavar="FILE",
        help="samples for --quantization: .npy for one input, .npz with an array for each",
    )
    p.add_argument("--nnp-parameter-h5", action="store_true", help=".nnp: parameters as .h5")
    p.add_argument("--nnp-parameter-nntxt", action="store_true", help=".nnp: parameters as text")
    p.add_argument("--nnp-exclude-parameter", action="store_true", help=".nnp: no parameters")
    p.add_argument(
        "--nnp-no-expand-network", action="store_true", help="keep loops of an NNP as they are"
    )
    p.add_argument(
        "--verify",
        action="store_true",
        help="run source and result on random input, the result in its format's own runtime where "
        "installed, and print the largest difference; OUTPUT is not written if it is larger than "
        "--tolerance. An open batch size is tried with two",
    )
    p.add_argument(
        "--tolerance",
        type=float,
        default=1e-3,
        help="of --verify (default 1e-3), times the largest number of an output",
    )
    p.add_argument("--json", action="store_true", help="print a report as JSON")
    for flag in WITHOUT_EFFECT:
        p.add_argument(flag, action="store_true", help=argparse.SUPPRESS)
    p.set_defaults(run=run)


WITHOUT_EFFECT = ("--nnp-exclude-preprocess", "--enable-optimize-pb")


def _refuse_others(args: argparse.Namespace) -> None:
    if args.nnp_version is not None:
        raise ValueError(
            "the option --nnp-version needs tables of old releases that NNabla downloads: nnl "
            "writes the functions of NNabla 1.39"
        )


def run(args: argparse.Namespace) -> int:
    """Do it; the report goes to stdout."""
    if len(args.files) < 2:
        raise UsageError(f"wanted FILE... OUTPUT, got only {args.files[0]}")
    _refuse_others(args)
    for flag in WITHOUT_EFFECT:
        if getattr(args, flag.removeprefix("--").replace("-", "_")):
            logger.warning("%s has no effect, here as in nnabla_cli", flag)
    if args.channel_last:
        logger.warning("--channel-last has no effect: layers say themselves whether maps are last")
    *inputs, output = args.files
    output = output.rstrip(os.sep) or output  # a folder may be named with it
    target = format_of(output, args.export_format, True)
    options = _options(args, target)
    folder = os.path.dirname(output) or "."
    if not os.path.isdir(folder):
        raise ValueError(f"{output}: there is no folder {folder}")
    for path in inputs:
        if os.path.exists(output) and os.path.exists(path) and os.path.samefile(path, output):
            raise ValueError(f"{output} is both input and output")
    model, source = read_model(inputs, args.import_format)
    if not args.nnp_no_expand_network and isinstance(model, NnpModel):
        model = NnpModel(expanded(model.content()))
    if args.nnp_import_executor_index is not None:
        model = NnpModel(with_executor(model.content(), args.nnp_import_executor_index))
    if args.inputs is not None or args.outputs is not None:
        model = model.between(_names(args.inputs), _names(args.outputs))
    if args.open and not target.opens:
        some = ", ".join(f.name for f in FORMATS.values() if f.opens and f.write is not None)
        raise UsageError(f"the option --open is for {some}, not {target.name}")
    if args.max_trips is not None:
        model.bound_loops(args.max_trips)
    if args.shape or args.open:
        model.close(_shapes(*args.shape, *args.open))
    opens = target.opens and args.batch_size in (None, (-1,)) and not args.quantization
    more = more_than_batch(model, "" if opens else target.name)
    if opens and (more or args.open) and target.name != "NNLP":
        options = replace(options, batch_size=-1)
    _tell_executors(args, model, target)
    parts = _parts(args, model, output, target, options)
    if args.config is None:
        for _, part in parts:
            missing = unsupported(part, target)
            if missing:
                raise NotImplementedError(
                    f"{target.name} has no form of these functions: {', '.join(missing)}"
                )
    reports = [_convert(part, path, target, options, args) for path, part in parts]
    report = {"from": source.name, "to": target.name, "outputs": reports}
    if args.json:
        print(json.dumps(report, indent=1, sort_keys=True))
    else:
        _print(reports, bool(args.split or args.config))
    failed = [r["file"] for r in reports if not r.get("written", True)]
    for name in failed:
        print(
            f"nnl convert: error: {name} differs from its source, so it was not written",
            file=sys.stderr,
        )
    return 1 if failed else 0


def _tell_executors(args: argparse.Namespace, model: Model, target: Format) -> None:
    if target.name in ("NNP", "NNLP") or args.nnp_import_executor_index is not None:
        return
    if isinstance(model, NnpModel) and args.inputs is None and args.outputs is None:
        names = [e.name for e in model.content().proto.executor]
        if len(names) > 1:
            logger.warning(
                "%s has the executors %s: %s is converted, -E chooses another",
                model.where,
                ", ".join(names),
                names[0],
            )


def _names(text: str | None) -> list[str] | None:
    """Names separated by commas."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _options(args: argparse.Namespace, target: Format) -> WriteOptions:
    chosen = [k for k in ("h5", "nntxt") if getattr(args, f"nnp_parameter_{k}")]
    if len(chosen) + args.nnp_exclude_parameter > 1:
        raise UsageError("only one of --nnp-parameter-h5, -nntxt and --nnp-exclude-parameter")
    if (chosen or args.nnp_exclude_parameter) and target.name != "NNP":
        raise UsageError(f"the options --nnp-... of parameters are for NNP, not {target.name}")
    parameters = f".{chosen[0]}" if chosen else ".protobuf"
    version = None
    if args.define_version is not None:
        found = re.fullmatch(rf"(?:opset_|{target.name.lower()}_)?(\d+)", args.define_version)
        if found is None:
            raise UsageError(f"-d is {args.define_version!r}, wanted opset_N or a number")
        version = int(found[1])
    if args.ir_version is not None and target.name != "ONNX":
        raise UsageError(f"the option --ir_version is for ONNX, not {target.name}")
    if target.name != "NNB":
        for option in ("api", "default_variable_type", "settings"):
            if getattr(args, option) is not None:
                raise UsageError(f"--{option.replace('_', '-')} is for NNB, not {target.name}")
    if args.weights_file and target.name != "CSRC":
        raise UsageError(f"the option --weights-file is for CSRC, not {target.name}")
    if args.precision != "float32" and target.name != "NNLP":
        raise UsageError(f"the option --precision is for NNLP, not {target.name}")
    if args.quantization != (args.dataset is not None):
        raise UsageError("--quantization and --dataset FILE belong together")
    if args.quantization and target.name not in ("ONNX", "NNLP", "TFLITE", "CSRC"):
        raise UsageError(f"--quantization is for ONNX, NNLP, TFLITE and CSRC, not {target.name}")
    size, *further = args.batch_size or (None if target.name in ("NNP", "NNLP") else 1,)
    if further and target.name != "NNLP":
        raise UsageError(f"several batch sizes in one file are for NNLP, not {target.name}")
    stored = None if args.nnp_exclude_parameter else parameters
    types = {}
    if args.settings is not None:
        from nnl.converters.nnb.types import read_settings

        types = read_settings(args.settings)
    return WriteOptions(
        size,
        version,
        stored,
        args.ir_version,
        tuple(further),
        args.api,
        types,
        args.default_variable_type or "FLOAT32",
        args.weights_file,
        args.dataset,
        args.precision,
    )


def _shapes(*texts: str) -> dict[str, list[str]]:
    """Inputs and sizes of options such as "x=1,3,640,640"."""
    try:
        return dict(map(words, texts))
    except ValueError as error:
        raise UsageError(str(error)) from None


def _batch_sizes(text: str) -> tuple[int, ...]:
    """The numbers of "8" or "1,8"."""
    try:
        return tuple([int(n) for n in text.split(",")])
    except ValueError:
        message = f"{text!r} is no batch size, wanted one such as 8, or several: 1,8"
        raise argparse.ArgumentTypeError(message) from None


# ---- parts ----


def _parts(
    args: argparse.Namespace, model: Model, output: str, target: Format, options: WriteOptions
) -> list[tuple[str, Model]]:
    if args.split is None and args.config is None:
        return [(output, model)]
    if args.split is not None and args.config is not None:
        raise UsageError("only one of -S and -c")
    content = expanded(model.content())
    if content.proto.executor and args.nnp_import_executor_index is None:
        content = with_executor(content, 0)
    message = network_of(content)
    functions = functions_of(content, message)

    def operators(function: Any) -> set[str]:
        part = NnpModel(with_functions(content, message, [function]))
        return set() if target.operators is None else set(target.operators(part, options.version))

    ranges = (
        _ranges(args.split, len(functions))
        if args.split is not None
        else _allowed_ranges(args.config, functions, operators)
    )
    stem, extension = os.path.splitext(output)
    return [
        (
            f"{stem}_{a}_{b}{extension}",
            NnpModel(with_functions(content, message, functions[a : b + 1])),
        )
        for a, b in ranges
    ]


def _ranges(text: str, count: int) -> list[tuple[int, int]]:
    """Inclusive ranges of "a-b,c-"."""
    ranges = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d*)\s*-\s*(\d*)\s*", part)
        if found is None:
            raise UsageError(f"-S is {text!r}, wanted ranges such as 0-4,5-")
        first, last = int(found[1] or 0), int(found[2] or count - 1)
        if not first <= last < count:
            raise ValueError(f"-S: there is no range {part!r} in {count} functions")
        ranges.append((first, last))
    return ranges


def allowed_functions(path: str) -> set[str]:
    """The names in a list of functions: one per line, before a comma; ';' begins a comment."""
    with open(path, encoding="utf-8") as file:
        lines = [line.split(";")[0].strip() for line in file]
    return {line.split(",")[0].strip() for line in lines if line}


def _allowed_ranges(
    path: str, functions: Sequence[Any], operators: Callable[[Any], set[str]]
) -> list[tuple[int, int]]:
    allowed = allowed_functions(path)
    ranges: list[tuple[int, int]] = []
    for i, function in enumerate(functions):
        if function.type in allowed or _becomes(function, allowed, operators):
            joined = ranges and ranges[-1][1] == i - 1
            ranges[-1:] = [(ranges[-1][0], i)] if joined else [*ranges[-1:], (i, i)]
        else:
            print(
                f"nnl convert: {path} does not allow function {i}, {function.type}", file=sys.stderr
            )
    if not ranges:
        raise ValueError(f"{path} allows none of the functions: nothing to write")
    return ranges


def _becomes(function: Any, allowed: set[str], operators: Callable[[Any], set[str]]) -> bool:
    """Whether all operators that a function becomes are in a list with Operator@version."""
    if not any("@" in name for name in allowed):
        return False
    try:
        found = operators(function)
    except NotImplementedError:
        return False
    return bool(found) and found <= allowed


# ---- one part ----


def _convert(
    model: Model, path: str, target: Format, options: WriteOptions, args: argparse.Namespace
) -> dict[str, Any]:
    if target.write is None:
        raise ValueError(f"cannot write the format {target.name}")
    report: dict[str, Any] = {"file": path}
    if args.verify:
        report["written"] = False
        with suppress(_Differs), replacing(path, folder=not target.extensions) as file:
            target.write(model, str(file), options)
            report["bytes"] = _bytes(file)
            gap = largest_gap(model, str(file), path, target, options)
            report["relative_difference"] = gap.relative
            report["largest_difference"], report["largest_value"] = gap.difference, gap.value
            report["verified_by"] = gap.by
            if not gap.relative <= args.tolerance:
                raise _Differs
            report["written"] = True
    else:
        target.write(model, path, options)
        report["bytes"] = _bytes(Path(path))
    if (
        report.get("written", True)
        and (cost := cost_of_bits(model, path, target, options)) is not None
    ):
        report["accuracy"] = cost
    if isinstance(model, NnpModel):
        ends = interface(model.content())
        size = None if target.name == "NNP" or options.further else options.batch_size
        for kind, shapes in zip(("inputs", "outputs"), ends, strict=True):
            report[kind] = {n: _sized(shape, size) for n, shape in shapes.items()}
    return report


def _bytes(path: Path) -> int:
    """The size of a file, or of those in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(f.stat().st_size for f in files if f.is_file())


class _Differs(Exception):
    """What was written is not the source, and does not take its place."""


def _sized(shape: Sequence[int], size: int | None) -> list[int]:
    """A shape with the batch size that was written in the place of -1."""
    return [size if n == -1 and size is not None else n for n in shape]


def _print(reports: list[dict[str, Any]], parts: bool) -> None:
    for r in reports:
        print(f"{r['file']}: {r['bytes']} bytes" if r.get("written", True) else r["file"])
        if parts:
            for kind in ("inputs", "outputs"):
                print(f"  {kind}:")
                for name, shape in r[kind].items():
                    print(f"    {name}: {shape}")
        if "largest_difference" in r:
            of = f"of values up to {r['largest_value']:.3g}"
            print(
                f"  largest difference: {r['largest_difference']:.3g}, {of}, by {r['verified_by']}"
            )
        if "accuracy" in r:
            print(f"  {r['accuracy']}")

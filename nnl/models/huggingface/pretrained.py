# SPDX-License-Identifier: Apache-2.0
"""Networks from folders of Hugging Face's libraries, and back into them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tqdm import tqdm

from nnl.converters.weights.folder import read_folder, read_json, write_folder
from nnl.converters.weights.groups import Groups
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import Spec
from nnl.core.graph.variable import Variable
from nnl.core.parameters.atomic import replacing
from nnl.core.parameters.parameter import (
    all_or_nothing,
    get_current_parameter_scope,
    get_parameter,
    parameter_scope,
    without_values,
)
from nnl.core.settings.context import EPOCH
from nnl.models import adapters, quantization
from nnl.models.adapters import parameter, setting
from nnl.models.generation.cached import CHUNK, Cached
from nnl.models.generation.generate import (
    Answerer,
    Writer,
    as_prompts,
    sound_sources,
    text_sources,
)
from nnl.models.generation.speaking import Speaks
from nnl.models.huggingface import answers, decoders, encoders, pictures
from nnl.models.huggingface.adapted import Adapts
from nnl.models.huggingface.family import Array, Config, Family
from nnl.models.huggingface.learning import Learns
from nnl.models.huggingface.packed import unpacked
from nnl.models.huggingface.stored import described
from nnl.models.huggingface.text import Text, end_of
from nnl.models.huggingface.vectors import Embeds
from nnl.models.stack import CHECKPOINTING, checkpointing

__all__ = ["Pretrained", "from_config", "from_huggingface"]

FAMILIES = {**decoders.FAMILIES, **encoders.FAMILIES, **answers.FAMILIES, **pictures.FAMILIES}
BESIDE = (  # files of a folder that belong to text, which are copied as they are
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    "generation_config.json", "preprocessor_config.json", "modules.json", "1_Pooling/config.json",
)  # fmt: skip


class Pretrained(Speaks, Learns, Embeds, Adapts):
    """A network of one of the families that are known, and its parameters.

    `from_huggingface` and `from_config` make it. Its parameters are in the scope that was the
    current one then.

    Attributes:
        family: What it does, and what its parameters are called in files.
        config: Its sizes.
        source: What config.json says.
        folder: Where it is from, if it is from a folder.
        recomputes: Whether `checkpointing` is on.
    Example:
        >>> sizes = {"n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 8, "vocab_size": 50}
        >>> with nn.parameter_scope("pretrained"):
        ...     model = models.from_config({"model_type": "gpt2", **sizes})
        >>> model(nn.Variable((2, 5))).shape
        (2, 5, 50)
    """

    def __init__(self, source: Mapping[str, Any], where: str, folder: Path | None = None) -> None:
        self.source, self.where, self.folder = dict(source), where, folder
        self.scope, self.recomputes = get_current_parameter_scope(), False
        self.family = _family(self.source, where)
        self.config = self.family.read(Config(self.source, f"{where}/config.json"))

    def __call__(self, *args: Any, train: bool = False, **kw: Any) -> Any:
        """The network as a graph; for its other arguments see the function of its family.

        Args:
            train: With the dropout that its adapters have.
        """
        p = float((self.adapter or {}).get("lora_dropout", 0.0)) if train else 0.0
        with setting(adapters.DROPOUT, p), checkpointing(self.recomputes or CHECKPOINTING.get()):
            return self._inside(self.family.call)(*args, **kw)

    def checkpointing(self, on: bool = True) -> None:
        """Let graphs that are made from now on keep little for backward; see `checkpointing`."""
        self.recomputes = on

    def parameters(self, grad_only: bool = False) -> dict[str, Variable]:
        """Its parameters by name, those that were made of them.

        Args:
            grad_only: Only those that are trained: none that is quantized, nor frozen.
        """
        paths = list(self.family.shapes(self.config))
        stems = [path.removesuffix("/W") for path in paths if path.endswith("/W")]
        parts = (*quantization.PARTS, *adapters.PARTS)
        paths += [f"{stem}/{part}" for stem in stems for part in parts]
        with self.scoped():
            found = {path: get_parameter(path) for path in paths}
        return {
            path: v for path, v in found.items() if v is not None and (v.need_grad or not grad_only)
        }

    @cached_property
    def writer(self) -> Writer:
        """What writes; see `generate`.

        Raises:
            ValueError: The family does something else.
        """
        if self.family.kind not in ("text", "answers", "speech"):
            raise ValueError(f"generate: {self.source['model_type']} does not write")
        own = self.folder and self.folder / "generation_config.json"
        settings = read_json(own, self.where) if own and own.is_file() else {}
        ends = settings.get("eos_token_id", self.source.get("eos_token_id"))
        ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
        if not all(type(t) is int for t in ends):
            raise ValueError(f"{self.where}: eos_token_id is {ends!r:.60}, wanted whole numbers")
        named = end_of(self.folder, self.where) if self.folder else []
        ends = [*ends, *(t for t in named if t not in ends)]
        if self.family.reads is None:
            return Writer(self, self.config, ends)
        said = Config({**self.source, **settings}, self.where)
        begin = said.whole("decoder_start_token_id", 0, 0)
        if self.family.kind == "speech":
            named = self.folder is not None and (self.folder / "tokenizer.json").is_file()
            sources = sound_sources(self.config, named)
        else:
            sources = text_sources(self.config, said.whole("pad_token_id", 0, 0))
        write, read = map(self._inside, (self.family.writes, self.family.reads))
        return Answerer(write, self.config, ends, read, sources, [begin])

    def _inside(self, f: Any) -> Callable[..., Any]:
        """A function of the family, of its other arguments, in the scope of the parameters."""

        def inside(*args: Any, **kw: Any) -> Any:
            with self.scoped():
                return f(self.config, *args, **kw)

        return inside

    @cached_property
    def text(self) -> Text:
        """Its tokenizer and templates.

        Raises:
            ValueError: The folder has none.
        """
        if self.folder is None:
            raise ValueError(f"{self.where}: a network without a folder has no tokenizer")
        return Text(self.folder, self.where)

    def save_program(
        self, path: str | os.PathLike[str], batch: int = 1, capacity: int = 0, chunk: int = CHUNK,
        source: int = 512,
    ) -> None:  # fmt: skip
        """Write what writes as a program, .nnlp, to run without Python or the network's code.

        `read` takes tokens (texts, size), up to `chunk` of each text, before (texts,), the numbers
        of tokens in the caches, and counts (texts,), how many of the tokens count; it gives scores
        (texts, vocabulary) of what follows the last of these. With a batch of three texts or more
        it also takes slots (texts,): which rows of the caches the texts have. The tokenizer and the
        chat template are in the file, too.

        What answers a text has a program `source` for it: from tokens (1, source) and counts (1,)
        to `begin`, the tokens that its answer begins with, and to what `read`, of all texts, has as
        further inputs, with a row for each.

        Args:
            batch: How many texts go side by side.
            capacity: How many tokens a text can get; all positions of the network if 0.
            source: How many tokens a text that is answered can have.
        Raises:
            ValueError: A size is out of range, or the network writes what it hears.
        """
        longest = self.writer.config.longest
        if not 0 <= capacity <= longest or min(chunk, batch, source) < 1:
            raise ValueError(
                f"save_program: batch {batch}, capacity {capacity}, chunk {chunk} and source "
                f"{source}, wanted at least 1, and a capacity of at most {longest}"
            )
        if self.family.kind == "speech":
            raise ValueError("save_program: what writes what it hears is not saved as programs")
        writer = self.writer
        cached = Cached(writer.network, self.config, batch, capacity or longest, chunk)
        if isinstance(writer, Answerer):
            cached.save(path, self._language(), *writer.reader(source))
        else:
            cached.save(path, self._language())

    def _language(self) -> bytes:
        """What a file of programs says of text."""
        if self.folder is None or not (self.folder / "tokenizer.json").is_file():
            return b""
        return described(self.text, self.writer.ends)

    @contextmanager
    def scoped(self) -> Iterator[None]:
        """The scope of its parameters as the current one."""
        with parameter_scope("", self.scope):
            yield

    def quantize(
        self,
        bits: int = 4,
        group_size: int = 32,
        symmetric: bool = False,
        calibration: Any = (),
        skip: str = "",
    ) -> dict[str, float]:
        """Let the weights of its products have 4 or 8 bits, in groups with a scale each.

        Embeddings, norms, biases, routers and experts stay as they are; of a table that embeds
        tokens and scores them, the scoring product gets codes of its own. The network runs as
        before, with activations of 8 bits in these products (`nnl.functions.quantized_matmul`).
        Quantized weights are not trained: their gradients end there.

        Args:
            bits: 4 or 8.
            group_size: Neighbours in a row that share a scale.
            symmetric: Whether groups have no offset.
            calibration: Texts, or lists of tokens, from which GPTQ's method learns what errors
                matter; without any, weights are rounded to nearest.
            skip: A pattern of names of layers that stay as they are, such as "^head$|/down$".
        Returns:
            {a layer: the relative error of its weights}.
        Raises:
            ValueError: The bits or the group size do not fit a layer; what was quantized before it
                stays.
        """
        if bits not in (4, 8):
            raise ValueError(f"quantize: bits is {bits}, wanted 4 or 8")
        texts = as_prompts(calibration, self._encode)[0] if len(calibration) else []
        steps = quantization.quantized(self, bits, group_size, symmetric, texts, skip)
        found = dict(tqdm(steps, "quantizing", unit="layer", disable=None))
        self.changed()
        return found

    def changed(self) -> None:
        """Forget programs of parameters that were there before."""
        for made in ("writer", "_embed"):
            self.__dict__.pop(made, None)
        EPOCH.advance()

    def load(
        self, arrays: Mapping[str, Array], groups: Mapping[str, Groups] = MappingProxyType({})
    ) -> None:
        """Use arrays as parameters, by their names in the family's files.

        Args:
            groups: Of arrays of which only the shape counts, the weights of 4 or 8 bits.
        Raises:
            ValueError: Arrays are missing, or have no place in the network; they are listed.
            ShapeError: One has another shape. Nothing is changed then.
        """
        config = self.family.fitted(self.config, arrays)
        values = self.family.load(config, arrays, self.where)

        placed = {}
        if groups:
            names = self.family.names(config, self.family.shapes(config), list(arrays))
            placed = {path: groups[name] for path, (name, *_) in names.items() if name in groups}
        fixed = [
            path
            for path in placed
            if not path.endswith("/W") or path.removesuffix("/W") in quantization.TABLES
        ]
        if fixed:
            raise ValueError(f"{self.where}: {fixed[0]} is quantized, which only products can be")
        values = {path: value for path, value in values.items() if path not in placed}

        def parameters() -> list[Variable]:
            with self.scoped(), without_values():
                return [parameter(path, v.shape) for path, v in values.items()]

        for v, value in zip(all_or_nothing(parameters, (), {}), values.values(), strict=True):
            v.data.become(NdArray.holding(Spec.of(value.shape, value.dtype), "host", value))
        with self.scoped():
            for path, found in placed.items():
                quantization.put(path.removesuffix("/W"), found)
        self.config = config
        self.changed()

    def to_huggingface(self, folder: str | os.PathLike[str], most_bytes: int = 5 * 10**9) -> None:
        """Write a folder that transformers loads: config.json, safetensors, and what text needs.

        Args:
            most_bytes: Of a file of weights; more than that becomes several, with an index.
        Raises:
            ValueError: Layers are quantized, or have adapters.
        """
        if self.adapter is not None:
            raise ValueError(
                "to_huggingface: the network has adapters: save_adapter writes them, merge folds "
                "them into the weights"
            )
        root = Path(folder)
        values = {path: v.data.read("host") for path, v in self.parameters().items()}
        few = [path for path in values if path.endswith("/codes")]
        if few:
            raise ValueError(
                f"to_huggingface: {len(few)} layers are quantized, {few[0].removesuffix('/codes')} "
                "first: write the network before it is"
            )
        arrays = self.family.save(self.config, values)
        root.mkdir(parents=True, exist_ok=True)
        write_folder(root, arrays, most_bytes)
        types = {a.dtype.name for a in arrays.values()}
        source = {k: v for k, v in self.source.items() if k not in ("dtype", "torch_dtype")}
        if len(types) == 1:
            source["dtype"] = source["torch_dtype"] = types.pop()
        with replacing(root / "config.json") as temporary:
            Path(temporary).write_text(json.dumps(source, indent=2, ensure_ascii=False), "utf-8")
        for name in BESIDE if self.folder is not None else ():
            if (self.folder / name).is_file() and self.folder.resolve() != root.resolve():
                (root / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(self.folder / name, root / name)


def _family(source: Mapping[str, Any], where: str) -> Family:
    name = source.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ValueError(
            f"{where}: config.json has the model_type {name!r:.60}, known are "
            f"{', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[name]


def from_huggingface(folder: str | os.PathLike[str]) -> Pretrained:
    """The network of a folder, with its parameters in the current scope.

    Args:
        folder: Has config.json, and weights as safetensors or as pytorch_model.bin, in one file or
            several with an index. Parameters keep their types; those of safetensors are the file's
            memory, mapped.
    Raises:
        ValueError: The family is unknown, the config says what is not supported, a file is damaged,
            or tensors are missing or have no place; they are named.
        ShapeError: A tensor has another shape than config.json says.

    Example:
        >>> sizes = {"n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 8, "vocab_size": 50}
        >>> with nn.parameter_scope("written"):
        ...     models.from_config({"model_type": "gpt2", **sizes}).to_huggingface("gpt2-small")
        >>> with nn.parameter_scope("read"):
        ...     model = models.from_huggingface("gpt2-small")
        >>> sorted(model.parameters())[:2]
        ['layer1/attention/norm/beta', 'layer1/attention/norm/gamma']
    """
    where = f"from_huggingface: {os.fspath(folder)}"
    root = Path(folder)
    model = Pretrained(read_json(root / "config.json", where), where, root)
    model.load(*unpacked(read_folder(root, where), model.source.get("quantization_config"), where))
    return model


def from_config(config: Mapping[str, Any]) -> Pretrained:
    """A network that has learned nothing, of the sizes that a config.json would say.

    Args:
        config: {"model_type": "llama", "hidden_size": 64, ...}.
    Raises:
        ValueError: The family is unknown, or a size is missing or none.
    Example:
        >>> with nn.parameter_scope("unknown"):
        ...     try:
        ...         models.from_config({"model_type": "perceptron"})
        ...     except ValueError as error:
        ...         print(str(error)[:67])
        from_config: config.json has the model_type 'perceptron', known are
    """
    model = Pretrained(config, "from_config")
    model.family.build(model.config)
    return model

# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters of a pretrained network, and the files in which peft keeps them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from nnl.converters.weights.folder import read_file, read_json
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.graph.variable import Variable
from nnl.core.parameters.atomic import replacing
from nnl.core.parameters.parameter import get_parameter_or_create, pop_parameter
from nnl.core.parameters.safetensors import save
from nnl.models import adapters, quantization
from nnl.models.huggingface.family import MOST_LISTED, Array, Config, Family, only
from nnl.parametric_functions.initializer import UniformInitializer

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FRONT = "base_model.model."  # of every name in WEIGHTS
USUAL = re.compile(r"(attention|cross)/(q|v|qkv)$")  # what has adapters if nothing else is said
HEADS = re.compile(r"(^|/)(head|classes)$")
TASKS = {"text": "CAUSAL_LM", "answers": "SEQ_2_SEQ_LM"}
REFUSED: dict[str, Any] = {  # settings of peft, and the only value that is supported
    "bias": "none", "use_dora": False, "lora_bias": False, "modules_to_save": [],
    "target_parameters": [], "trainable_token_indices": [], "layer_replication": [],
    "use_qalora": False, "use_bdlora": False, "alora_invocation_tokens": [],
}  # fmt: skip


class Adapts:
    """What has adapters; the other attributes are of the class.

    Attributes:
        adapter: What adapter_config.json says of them; None without any.
    """

    family: Family
    config: Any
    source: dict[str, Any]
    folder: Path | None
    parameters: Callable[..., dict[str, Variable]]
    scoped: Callable[[], AbstractContextManager[None]]
    changed: Callable[[], None]
    adapter: dict[str, Any] | None = None

    def lora(
        self,
        rank: int = 8,
        alpha: float = 8.0,
        targets: str | Iterable[str] = (),
        dropout: float = 0.0,
        rslora: bool = False,
    ) -> dict[str, Variable]:
        r"""Freeze the network, and give products new adapters, which are trained instead.

        A product $x W^T$ becomes $x W^T + s\,(x A^T) B^T$ with A (rank, n) and B (m, rank), where
        $s = \alpha / r$, or $\alpha / \sqrt r$ with rslora. B begins with zeros, so the network
        does at first what it did. Weights may have 4 or 8 bits (`quantize`). Graphs that are made
        from then on have the adapters, and so has what `generate` writes; adapters that were there
        before are gone.

        Args:
            targets: Names of layers in the family's files, or ends of them, such as "q_proj"; or
                one pattern that whole names match; or "all-linear", all but the head. If left out,
                queries and values.
            dropout: Probability of 0 for what adapters get, in graphs of `model(..., train=True)`.
        Returns:
            The parameters to train, by names.
        Raises:
            ValueError: An argument is out of range, or there is no such layer.
        Source: Hu et al., LoRA, arXiv:2106.09685; Kalajdzievski, arXiv:2312.03732; Dettmers et al.,
            QLoRA, arXiv:2305.14314.
        Example:
            >>> sizes = {"n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 8}
            >>> with nn.parameter_scope("adapted"):
            ...     model = models.from_config({"model_type": "gpt2", "vocab_size": 50, **sizes})
            >>> {name: v.shape for name, v in model.lora(rank=2).items()}
            {'layer1/attention/qkv/lora_A': (2, 16), 'layer1/attention/qkv/lora_B': (48, 2)}
        """
        if type(rank) is not int or rank < 1:
            raise ValueError(f"lora: rank is {rank!r:.40}, wanted a whole number from 1 on")
        if not np.isfinite(alpha):
            raise ValueError(f"lora: alpha is {alpha!r:.40}, wanted a finite number")
        if not 0 <= dropout < 1:
            raise ValueError(f"lora: dropout is {dropout!r:.40}, wanted a number from 0 up to 1")
        layers = self._layers()
        names = {stem: name for stem, (name, _) in layers.items()}
        targets = targets if isinstance(targets, str) else sorted(targets)
        if not targets:
            found = [stem for stem in names if USUAL.search(stem)]
            targets = _ends(names[stem] for stem in found)
        elif targets == "all-linear":
            targets = _ends(name for stem, name in names.items() if not HEADS.search(stem))
        chosen = [stem for stem, name in names.items() if _is_target(name, targets)]
        for t in [targets] if isinstance(targets, str) else targets:
            one = t if isinstance(targets, str) else [t]
            if not any(_is_target(name, one) for name in names.values()):
                raise ValueError(
                    f"lora: targets has {t!r:.60}, which is no layer; there are "
                    f"{', '.join(_ends(names.values()))}"
                )
        adapter = {
            "peft_type": "LORA",
            "task_type": TASKS.get(self.family.kind),
            "base_model_name_or_path": str(self.folder or "") or None,
            "r": rank,
            "lora_alpha": alpha,
            "lora_dropout": dropout,
            "use_rslora": bool(rslora),
            "target_modules": targets,
            "fan_in_fan_out": any(self.family.lies_across(f"{stem}/W") for stem in chosen),
            "bias": "none",
            "inference_mode": True,
        }
        values = {}
        for stem in chosen:
            rows, columns = layers[stem][1]
            limit = columns**-0.5
            a = UniformInitializer((-limit, limit))((rank, columns))
            values[stem] = (a, np.zeros((rows, rank), np.float32))
        self._adapt(adapter, values, names)
        return self.parameters(grad_only=True)

    def save_adapter(self, folder: str | os.PathLike[str]) -> None:
        """Write the adapters as peft does: adapter_config.json and adapter_model.safetensors.

        Raises:
            ValueError: There are none.
        """
        adapter = self._present("save_adapter")
        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        # what is none but a body has names without prefix there
        bare = self.family.heads and not set(self.config.heads) - {"summary"}
        prefix = self.family.prefix if bare else ""
        arrays, layers = {}, self._layers()
        for stem, parts in self._parts().items():
            name = layers[stem][0].removeprefix(prefix)
            for part in (adapters.A, adapters.B):
                arrays[f"{FRONT}{name}.{part}.weight"] = parts[part]
        save(root / WEIGHTS, arrays, {"format": "pt"})
        with replacing(root / CONFIG) as temporary:
            Path(temporary).write_text(json.dumps(adapter, indent=2, sort_keys=True), "utf-8")

    def load_adapter(self, folder: str | os.PathLike[str]) -> dict[str, Variable]:
        """Freeze the network, and give it the adapters of a folder that peft or nnl has written.

        Returns:
            Their parameters by names, to train on.
        Raises:
            ValueError: A file is missing or damaged, the settings are none that are supported,
                layers are missing or have no place in the network; they are named. Nothing is
                changed then.
            ShapeError: One has another shape.
        """
        where, root = f"load_adapter: {os.fspath(folder)}", Path(folder)
        adapter = read_json(root / CONFIG, where)
        c = Config(adapter, f"{where}/{CONFIG}")
        c.one_of("peft_type", {"LORA": "LORA"})
        c.whole("r")
        c.number("lora_alpha")
        c.number("lora_dropout", 0.0)
        c.flag("use_rslora", False)
        only(c, **{k: v for k, v in REFUSED.items() if adapter.get(k) not in (None, {}, [])})
        targets = adapter.get("target_modules")
        if not isinstance(targets, str | list):
            raise ValueError(f"{c.where}: target_modules is {targets!r:.60}, wanted names")
        if not (root / WEIGHTS).is_file():
            raise ValueError(f"{where}: there is no {WEIGHTS}")
        layers = self._layers()
        names = {stem: name for stem, (name, _) in layers.items()}
        stems = {name.removeprefix(self.family.prefix): stem for stem, name in names.items()}
        found: dict[str, dict[str, Array]] = {}
        strange = []
        for key, value in read_file(root / WEIGHTS, where).items():
            name, _, part = key.removeprefix(FRONT).removesuffix(".weight").rpartition(".")
            stem = stems.get(name.removeprefix(self.family.prefix))
            if stem is None or part not in (adapters.A, adapters.B):
                strange.append(key)
            else:
                found.setdefault(stem, {})[part] = value
        _none_left(f"{where}: {len(strange)} tensors have no place in the network", strange)
        asked = found
        if not (adapter.get("layers_to_transform") or adapter.get("exclude_modules")):
            asked = {**found, **{s: {} for s in names if _is_target(names[s], targets)}} | found
        missing = [names[s] for s in asked if len(found.get(s, {})) != 2]
        _none_left(f"{where}: adapters of {len(missing)} layers are missing", missing)
        values = {}
        for stem, parts in found.items():
            a, b = parts[adapters.A], parts[adapters.B]
            rows, columns = layers[stem][1]
            if a.ndim != 2 or a.shape[1] != columns or b.shape != (rows, len(a)) or not len(a):
                raise ShapeError(
                    f"{where}: {names[stem]} has adapters of the shapes {a.shape} and {b.shape}, "
                    f"wanted (r, {columns}) and ({rows}, r)"
                )
            values[stem] = (a, b)
        self._adapt(adapter, values, names)
        return self.parameters(grad_only=True)

    def merge(self) -> None:
        r"""Fold the adapters into the weights, $W + s\,B A$, and let the network be trained again.

        Weights keep their types. Those of 4 or 8 bits become float32, which `quantize` may round
        again.

        Raises:
            ValueError: There are no adapters.
        """
        self._present("merge")
        for stem, parts in self._parts().items():
            delta = parts[adapters.SCALE] * (parts[adapters.B] @ parts[adapters.A])
            with self.scoped():
                groups = quantization.groups_of(stem, delta.shape[1])
                if groups is None:
                    v = get_parameter_or_create(f"{stem}/W")
                    old = v.data.read("host")
                    w = (old.astype(np.float32) + delta).astype(old.dtype)
                else:
                    w = groups.array() + delta
                    for part in quantization.PARTS:
                        pop_parameter(f"{stem}/{part}")
                    v = get_parameter_or_create(f"{stem}/W", w.shape)
                v.data.become(NdArray.holding(Spec.of(w.shape, w.dtype), "host", w))
        self._drop()
        for path, v in self.parameters().items():
            v.need_grad = path.rpartition("/")[2] not in quantization.PARTS
        self.changed()

    def _layers(self) -> dict[str, tuple[str, tuple[int, int]]]:
        """{a layer that can have adapters: its name in files, and (rows, columns)}."""
        with adapters.setting(adapters.PLANNED, True):
            shapes = self.family.shapes(self.config)
        ends = tuple(f"/{end}" for end in ("router", *quantization.TABLES))
        found = {}
        for path, shape in shapes.items():
            stem, _, part = path.rpartition("/")
            if part == adapters.A and not f"/{stem}".endswith(ends):
                ((name,),) = self.family.names(self.config, {f"{stem}/W": (1,)}).values()
                size = (shapes[f"{stem}/{adapters.B}"][0], shape[1])
                found[stem] = (name.removesuffix(".weight"), size)
        return found

    def _present(self, method: str) -> dict[str, Any]:
        if self.adapter is None:
            raise ValueError(f"{method}: the network has no adapters; lora makes them")
        return self.adapter

    def _parts(self) -> dict[str, dict[str, Array]]:
        """{a layer: its adapters}."""
        found: dict[str, dict[str, Array]] = {}
        for path, v in self.parameters().items():
            stem, _, part = path.rpartition("/")
            if part in adapters.PARTS:
                found.setdefault(stem, {})[part] = v.data.read("host")
        return found

    def _drop(self) -> None:
        with self.scoped():
            for stem in self._parts():
                for part in adapters.PARTS:
                    pop_parameter(f"{stem}/{part}")
        self.adapter = None

    def _adapt(
        self, adapter: dict[str, Any], values: Mapping[str, tuple[Array, Array]],
        names: Mapping[str, str],
    ) -> None:  # fmt: skip
        """Let the network have these adapters, and train nothing else."""
        self._drop()
        for v in self.parameters().values():
            v.need_grad = False
        for stem, (a, b) in values.items():
            alpha = float(adapter["lora_alpha"])
            for pattern, own in (adapter.get("alpha_pattern") or {}).items():
                if re.match(rf"(.*\.)?({pattern})$", names[stem]):
                    alpha = float(own)
                    break
            rank = len(a)
            with self.scoped():
                scale = alpha / (sqrt(rank) if adapter.get("use_rslora") else rank)
                adapters.put(stem, a, b, scale)
        self.adapter = adapter
        self.changed()


def _is_target(name: str, targets: str | Sequence[str]) -> bool:
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    return any(name == t or name.endswith(f".{t}") for t in targets)


def _ends(names: Iterable[str]) -> list[str]:
    return sorted({name.rpartition(".")[2] for name in names})


def _none_left(text: str, names: Sequence[str]) -> None:
    if names:
        more = ", ..." if len(names) > MOST_LISTED else ""
        raise ValueError(f"{text}: {', '.join(sorted(names)[:MOST_LISTED])}{more}")

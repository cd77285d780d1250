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
from types import MappingProxyType
from typing import Any

import numpy as np

from nnl.converters.weights.folder import read_file, read_json
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.graph.variable import Variable
from nnl.core.parameters.atomic import replacing
from nnl.core.parameters.parameter import get_parameter, get_parameter_or_create, pop_parameter
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
    "bias": "none", "lora_bias": False, "target_parameters": [], "trainable_token_indices": [],
    "layer_replication": [], "use_qalora": False, "use_bdlora": False,
    "alora_invocation_tokens": [],
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
    _before: Mapping[str, Array] = MappingProxyType({})  # of what is trained as a whole

    def lora(
        self,
        rank: int = 8,
        alpha: float = 8.0,
        targets: str | Iterable[str] = (),
        dropout: float = 0.0,
        rslora: bool = False,
        dora: bool = False,
        modules_to_save: Iterable[str] = (),
    ) -> dict[str, Variable]:
        r"""Freeze the network, and give products new adapters, which are trained instead.

        A product $x W^T$ becomes $x W^T + s\,(x A^T) B^T$ with A (rank, n) and B (m, rank), where
        $s = \alpha / r$, or $\alpha / \sqrt r$ with rslora. B begins with zeros, so the network
        does at first what it did. Weights may have 4 or 8 bits (`quantize`). Graphs that are made
        from then on have the adapters, and so has what `generate` writes; adapters that were there
        before are gone.

        With dora, the rows of $W + s B A$ are brought to lengths that are trained too, at first
        those of W. What is written then costs more; `merge` ends that.

        Args:
            targets: Names of layers in the family's files, or ends of them, such as "q_proj"; or
                one pattern that whole names match; or "all-linear", all but the head. If left out,
                queries and values.
            dropout: Probability of 0 for what adapters get, in graphs of `model(..., train=True)`.
            modules_to_save: Ends of names of what is trained as a whole and saved beside the
                adapters, as it is in files: "lm_head", "embed_tokens", "norm", "classifier".
        Returns:
            The parameters to train, by names.
        Raises:
            ValueError: An argument is out of range, or there is no such layer.
        Source: Hu et al., LoRA, arXiv:2106.09685; Kalajdzievski, arXiv:2312.03732; Dettmers et al.,
            QLoRA, arXiv:2305.14314; Liu et al., DoRA, arXiv:2402.09353.
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
        kept = [modules_to_save] if isinstance(modules_to_save, str) else list(modules_to_save)
        whole = self._whole(kept, "lora")
        layers = self._layers()
        names = {stem: name for stem, (name, _) in layers.items() if f"{stem}/W" not in whole}
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
            "use_dora": bool(dora),
            "modules_to_save": kept or None,
            "inference_mode": True,
        }
        values: dict[str, dict[str, Array]] = {}
        for stem in chosen:
            rows, columns = layers[stem][1]
            limit = columns**-0.5
            a = UniformInitializer((-limit, limit))((rank, columns))
            values[stem] = {adapters.A: a, adapters.B: np.zeros((rows, rank), np.float32)}
            if dora:
                values[stem][adapters.MAGNITUDE] = np.linalg.norm(
                    self._weights(stem, columns), axis=1
                )
        self._adapt(adapter, values, names, dict.fromkeys(whole))
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
            if adapters.MAGNITUDE in parts:
                arrays[f"{FRONT}{name}.{adapters.MAGNITUDE}"] = parts[adapters.MAGNITUDE]
        parameters = self.parameters()
        whole = {path: parameters[path].data.read("host") for path in self._before}
        for name, value in self.family.save(self.config, whole).items():
            arrays[FRONT + name.removeprefix(prefix)] = value
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
        dora = c.flag("use_dora", False)
        kept = adapter.get("modules_to_save") or []
        if not isinstance(kept, list) or not all(isinstance(k, str) for k in kept):
            raise ValueError(f"{c.where}: modules_to_save is {kept!r:.60}, wanted names")
        only(c, **{k: v for k, v in REFUSED.items() if adapter.get(k) not in (None, {}, [])})
        targets = adapter.get("target_modules")
        if not isinstance(targets, str | list):
            raise ValueError(f"{c.where}: target_modules is {targets!r:.60}, wanted names")
        if not (root / WEIGHTS).is_file():
            raise ValueError(f"{where}: there is no {WEIGHTS}")
        layers, prefix = self._layers(), self.family.prefix
        whole = self._whole(kept, where, some=False)
        paths = {name.removeprefix(prefix): path for path, name in whole.items()}
        names = {stem: name for stem, (name, _) in layers.items() if f"{stem}/W" not in whole}
        stems = {name.removeprefix(self.family.prefix): stem for stem, name in names.items()}
        found: dict[str, dict[str, Array]] = {}
        trained: dict[str, Array] = {}
        strange = []
        wanted = (adapters.A, adapters.B, adapters.MAGNITUDE)[: 3 if dora else 2]
        shapes = {path: v.shape for path, v in self.parameters().items() if path in whole}
        for key, value in read_file(root / WEIGHTS, where).items():
            bare = key.removeprefix(FRONT).removeprefix(prefix)
            name, _, part = bare.removesuffix(".weight").rpartition(".")
            if bare in paths:
                path = paths[bare]
                trained[path] = self.family.value(path, shapes[path], [(key, value)], where)
            elif name in stems and part in wanted:
                found.setdefault(stems[name], {})[part] = value
            else:
                strange.append(key)
        _none_left(f"{where}: {len(strange)} tensors have no place in the network", strange)
        asked = found
        if not (adapter.get("layers_to_transform") or adapter.get("exclude_modules")):
            asked = {**found, **{s: {} for s in names if _is_target(names[s], targets)}} | found
        missing = [names[s] for s in asked if len(found.get(s, {})) != len(wanted)]
        _none_left(f"{where}: adapters of {len(missing)} layers are missing", missing)
        missing = [whole[path] for path in whole if path not in trained]
        _none_left(f"{where}: {len(missing)} tensors of modules_to_save are missing", missing)
        for stem, parts in found.items():
            a, b = parts[adapters.A], parts[adapters.B]
            rows, columns = layers[stem][1]
            if a.ndim != 2 or a.shape[1] != columns or b.shape != (rows, len(a)) or not len(a):
                raise ShapeError(
                    f"{where}: {names[stem]} has adapters of the shapes {a.shape} and {b.shape}, "
                    f"wanted (r, {columns}) and ({rows}, r)"
                )
            if dora:
                parts[adapters.MAGNITUDE] = m = parts[adapters.MAGNITUDE].reshape(-1)
                if m.shape != (rows,):
                    raise ShapeError(f"{where}: {names[stem]} has {m.size} magnitudes, not {rows}")
        self._adapt(adapter, found, names, trained)
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
            w = adapters.summed(self._weights(stem, parts[adapters.A].shape[1]), parts)
            with self.scoped():
                v = get_parameter(f"{stem}/W")
                if v is None:
                    for part in quantization.PARTS:
                        pop_parameter(f"{stem}/{part}")
                    v = get_parameter_or_create(f"{stem}/W", w.shape)
                else:
                    w = w.astype(v.data.read("host").dtype)
                _hold(v, w)
        self._before = {}
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

    def _whole(self, modules: Sequence[str], where: str, some: bool = True) -> dict[str, str]:
        """{a parameter: its name in files}, of those that are trained as a whole.

        Args:
            some: Whether each module must be there.
        """
        shapes = self.family.shapes(self.config)
        names = {k: several[0] for k, several in self.family.names(self.config, shapes).items()}
        found: dict[str, str] = {}
        for module in modules:
            # a part of the name that ends so, as peft has it: the module, or one that it is in
            own = re.compile(rf"^(.*{re.escape(module)})\.")
            these = {path: name for path, name in names.items() if module and own.match(name)}
            if some and not these:
                raise ValueError(
                    f"{where}: modules_to_save has {module!r:.60}, which is no module; there are "
                    f"{', '.join(_ends(n.rpartition('.')[0] for n in names.values()))}"
                )
            found |= these
        present = self.parameters()
        for path, name in found.items():
            if path not in present or len(self.family.names(self.config, shapes)[path]) > 1:
                raise ValueError(
                    f"{where}: modules_to_save has {name}, which is quantized or one of experts"
                )
            if path == "tokens/W" and getattr(self.config, "tied", False):
                raise ValueError(
                    f"{where}: modules_to_save has {name}, of which the head's weights are the same"
                )
        return found

    def _weights(self, stem: str, columns: int) -> Array:
        """The weights of a layer as float32, without its adapters."""
        with self.scoped():
            groups = quantization.groups_of(stem, columns)
            v = get_parameter(f"{stem}/W")
        if groups is not None:
            return groups.array()
        assert v is not None
        return v.data.read("host").astype(np.float32)

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
            for stem, parts in self._parts().items():
                for part in parts:
                    pop_parameter(f"{stem}/{part}")
        parameters = self.parameters()
        for path, old in self._before.items():
            _hold(parameters[path], old)
        self.adapter, self._before = None, {}

    def _adapt(
        self, adapter: dict[str, Any], values: Mapping[str, Mapping[str, Array]],
        names: Mapping[str, str], whole: Mapping[str, Array | None],
    ) -> None:  # fmt: skip
        """Let the network have these adapters, and train nothing else but `whole`.

        Args:
            whole: {a parameter: its value, if it gets another one}.
        """
        self._drop()
        parameters = self.parameters()
        for path, v in parameters.items():
            v.need_grad = path in whole
        self._before = {path: parameters[path].data.read("host").copy() for path in whole}
        for path, value in whole.items():
            old = self._before[path]
            _hold(parameters[path], old.copy() if value is None else value.astype(old.dtype))
        for stem, parts in values.items():
            alpha = float(adapter["lora_alpha"])
            for pattern, own in (adapter.get("alpha_pattern") or {}).items():
                if re.match(rf"(.*\.)?({pattern})$", names[stem]):
                    alpha = float(own)
                    break
            rank, columns = parts[adapters.A].shape
            w = self._weights(stem, columns) if adapters.MAGNITUDE in parts else None
            with self.scoped():
                scale = alpha / (sqrt(rank) if adapter.get("use_rslora") else rank)
                adapters.put(stem, parts, scale, w)
        self.adapter = adapter
        self.changed()


def _hold(v: Variable, value: Array) -> None:
    v.data.become(NdArray.holding(Spec.of(value.shape, value.dtype), "host", value))


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

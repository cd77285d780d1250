# SPDX-License-Identifier: Apache-2.0
"""Networks that nobody here wrote, in every format that a network is lowered for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nnl.cli.networks.verify import largest_gap
from nnl.converters.formats import FORMATS, WriteOptions
from nnl.converters.networks.lowering import CannotLower
from nnl.converters.networks.model import OnnxFile

pytestmark = pytest.mark.long
for package in ("onnx", "onnxruntime", "torch", "transformers"):
    pytest.importorskip(package)

from tests.converters.onnx_models import torch_models, transformers_models  # noqa: E402
from tests.converters.test_onnx_models import exported  # noqa: E402

# How many of the networks each format holds.
LEAST = {"NNB": 8, "CSRC": 10, "TFLITE": 10, "TF_PB": 10}
LOWERED = [name for name in LEAST if name in FORMATS]


@pytest.fixture(scope="module")
def models(tmp_path_factory: Any) -> dict[str, OnnxFile]:
    folder = tmp_path_factory.mktemp("onnx")
    makers = {name: make for make in (torch_models, transformers_models) for name in make()}
    return {n: OnnxFile(exported(n, make, folder, False)[0]) for n, make in makers.items()}


@pytest.mark.parametrize("target", LOWERED)
def test_a_network_is_right_or_refused_with_all_reasons(
    target: str, models: dict[str, OnnxFile], tmp_path: Path
) -> None:
    form, written = FORMATS[target], []
    assert form.write is not None
    for name, model in models.items():
        path = str(tmp_path / f"{name}{(*form.extensions, '')[0]}")
        options = WriteOptions(batch_size=2)
        try:
            form.write(model, path, options)
        except CannotLower as error:
            reasons = str(error).splitlines()
            assert reasons[0].startswith(f"{form.name} cannot hold") and len(reasons) > 1
            print(name, *reasons[1:], sep="\n")
            continue
        gap = largest_gap(model, path, name, form, options)
        assert gap.relative <= 1e-4, (name, gap)
        written.append(name)
    assert len(written) >= LEAST[target], written

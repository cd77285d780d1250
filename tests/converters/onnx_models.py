# SPDX-License-Identifier: Apache-2.0
"""Models nobody here wrote: networks exported by PyTorch, with random weights."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np


def torch_models() -> dict[str, Any]:
    """Modules and example inputs (batch first) by name."""
    import torch
    from torch import nn

    class Conv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2d(3, 8, 3, stride=2, padding=1)
            self.n = nn.BatchNorm2d(8)
            self.b = nn.Conv2d(8, 8, (3, 5), padding=(1, 2), groups=4)
            self.pool = nn.AvgPool2d(2, ceil_mode=True)
            self.up = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1)
            self.head = nn.Linear(4, 5)

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.n(self.a(x)))
            y = self.pool(nn.functional.silu(self.b(y)))
            y = nn.functional.interpolate(self.up(y), scale_factor=2.0, mode="bilinear")
            return self.head(y.mean((2, 3)))

    class Recurrent(nn.Module):
        def __init__(self, kind: Any) -> None:
            super().__init__()
            self.layer = kind(5, 7, num_layers=2, bidirectional=True, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.layer(x)[0]

    class Block(nn.Module):
        def __init__(self, a: int, b: int, stride: int) -> None:
            super().__init__()
            self.a = nn.Conv2d(a, b, 3, stride, 1, bias=False)
            self.b = nn.Conv2d(b, b, 3, 1, 1, bias=False)
            self.c = nn.Conv2d(a, b, 1, stride, bias=False)
            self.na, self.nb, self.nc = nn.BatchNorm2d(b), nn.BatchNorm2d(b), nn.BatchNorm2d(b)

        def forward(self, x: Any) -> Any:
            y = self.nb(self.b(torch.relu(self.na(self.a(x)))))
            return torch.relu(y + self.nc(self.c(x)))

    resnet = nn.Sequential(
        Block(1, 8, 1), Block(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )
    encoder = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    return {
        "conv": (Conv(), normal(2, 3, 19, 27)),
        "lstm": (Recurrent(nn.LSTM), normal(2, 6, 5)),
        "gru": (Recurrent(nn.GRU), normal(2, 6, 5)),
        "transformer": (nn.TransformerEncoder(encoder, 2), normal(2, 6, 16)),
        "small resnet": (resnet, normal(2, 1, 8, 8)),
    }


def transformers_models() -> dict[str, Any]:
    """Small models of the transformers package, and example inputs, by name."""
    import torch
    import transformers as t
    from torch import nn

    torch.manual_seed(0)
    rng = np.random.default_rng(0)

    class First(nn.Module):
        """The first output, as a tensor."""

        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            if x.dtype == torch.int64:
                # without a mask the older exporter meets an operator that it does not know
                return self.inner(x, attention_mask=torch.ones_like(x), return_dict=False)[0]
            return self.inner(x, return_dict=False)[0]

    tokens = rng.integers(0, 50, (2, 9))
    image = rng.normal(size=(2, 3, 32, 48)).astype(np.float32)
    square = rng.normal(size=(2, 3, 32, 32)).astype(np.float32)
    bert = t.BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    gpt2 = t.GPT2Config(
        vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=32, use_cache=False
    )
    vit = t.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
    )
    convnext = t.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1])
    resnet = t.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24], depths=[1, 2, 1], layer_type="basic"
    )
    return {
        "bert": (First(t.BertModel(bert)), tokens),
        "gpt2": (First(t.GPT2LMHeadModel(gpt2)), tokens),
        "vit": (First(t.ViTModel(vit)), square),
        "convnext": (First(t.ConvNextModel(convnext)), image),
        "resnet": (First(t.ResNetModel(resnet)), image),
    }


def export(module: Any, x: Any, path: Any, dynamo: bool) -> None:
    """Write a module as ONNX with a symbolic batch size, after making its numbers random."""
    import torch

    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():  # equal ones would be stored once
            parameter.add_(0.05 * torch.randn_like(parameter))
        for name, buffer in module.named_buffers():
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 2.0)
            elif name.endswith("running_mean"):
                buffer.normal_()
    write(module, x, path, dynamo)


def write(module: Any, x: Any, path: Any, dynamo: bool, fold: bool = True) -> None:
    """Write a module as ONNX with a symbolic batch size.

    Args:
        fold: Let the exporter fold batch normalisation into convolutions.
    """
    import torch

    module.eval()
    mode = torch.onnx.TrainingMode.EVAL if fold else torch.onnx.TrainingMode.PRESERVE
    example = (torch.from_numpy(x),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            torch.onnx.export(
                module,
                example,
                path,
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},),
                verbose=False,
            )
        else:
            torch.onnx.export(
                module,
                example,
                path,
                dynamo=False,
                opset_version=17,
                training=mode,
                do_constant_folding=fold,
                input_names=["x"],
                output_names=["y"],
                dynamic_axes={"x": {0: "batch"}},
            )

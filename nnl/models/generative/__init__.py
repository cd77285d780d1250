# SPDX-License-Identifier: Apache-2.0
"""Networks that make images. Parameters are called as in the published PyTorch code, with "/" for
".", so that `nnl.converters.weights.load_weights` reads its files."""

from nnl.models.generative.autoencoder import Autoencoder, decode, encode, quantize_vectors
from nnl.models.generative.diffusers import from_diffusers
from nnl.models.generative.diffusion_unet import DiffusionUNet, diffusion_unet
from nnl.models.generative.dit import DiT, dit

__all__ = [
    "Autoencoder",
    "DiT",
    "DiffusionUNet",
    "decode",
    "diffusion_unet",
    "dit",
    "encode",
    "from_diffusers",
    "quantize_vectors",
]

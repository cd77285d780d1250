# SPDX-License-Identifier: Apache-2.0
"""Networks that make images. Those of diffusers, DiT, StyleGAN2-ADA and ESRGAN call parameters as
the published PyTorch code does, with "/" for ".", so that `load_weights` reads its files."""

from nnl.models.generative.autoencoder import Autoencoder, decode, encode, quantize_vectors
from nnl.models.generative.diffusers import from_diffusers
from nnl.models.generative.diffusion_unet import DiffusionUNet, diffusion_unet
from nnl.models.generative.dit import DiT, dit
from nnl.models.generative.esrgan import rrdb_net
from nnl.models.generative.progressive import progressive_discriminator, progressive_generator
from nnl.models.generative.stylegan2 import (
    StyleGAN2,
    stylegan2_discriminator,
    stylegan2_mapping,
    stylegan2_synthesis,
)
from nnl.models.generative.translation import (
    patch_discriminator,
    pix2pix_generator,
    resnet_generator,
    stargan_discriminator,
    stargan_generator,
)

__all__ = [
    "Autoencoder",
    "DiT",
    "DiffusionUNet",
    "StyleGAN2",
    "decode",
    "diffusion_unet",
    "dit",
    "encode",
    "from_diffusers",
    "patch_discriminator",
    "pix2pix_generator",
    "progressive_discriminator",
    "progressive_generator",
    "quantize_vectors",
    "resnet_generator",
    "rrdb_net",
    "stargan_discriminator",
    "stargan_generator",
    "stylegan2_discriminator",
    "stylegan2_mapping",
    "stylegan2_synthesis",
]

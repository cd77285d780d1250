# SPDX-License-Identifier: Apache-2.0
"""Networks from the literature, each a function of Variables.

`build` makes those for ImageNet by name, `load_torch_weights` gives them what PyTorch trained.
`from_huggingface` opens a folder with a language model, an encoder or another transformer.
A call makes its parameters in the current parameter scope, so two networks need two scopes:

>>> with nn.parameter_scope("teacher"):
...     y = resnet(x, depth=101, test=True)
"""

from nnl.models.bert import bert, bert_masked_language_model
from nnl.models.catalogue import NETWORKS, build
from nnl.models.convolution import synchronised
from nnl.models.dcgan import dcgan_discriminator, dcgan_generator
from nnl.models.decoder import Decoder, decoder
from nnl.models.efficientnet import efficientnet
from nnl.models.encoder import Encoder, encoder, sentence_vectors
from nnl.models.gguf import from_gguf
from nnl.models.gpt2 import gpt2
from nnl.models.huggingface.pretrained import Pretrained, from_config, from_huggingface
from nnl.models.lenet import lenet, mlp
from nnl.models.mobilenet_v3 import mobilenet_v3
from nnl.models.recurrent import recurrent_language_model
from nnl.models.resnet import resnet, resnext, se_resnet, se_resnext
from nnl.models.stack import Layer, Stack, checkpointing
from nnl.models.t5 import T5, t5
from nnl.models.torch_weights import load_torch_weights
from nnl.models.unet import unet
from nnl.models.vision import Pair, Vision, pair_scores, pair_vectors, vision
from nnl.models.whisper import Whisper, whisper

__all__ = [
    "Decoder",
    "Encoder",
    "Layer",
    "NETWORKS",
    "Pair",
    "Pretrained",
    "Stack",
    "T5",
    "Vision",
    "Whisper",
    "bert",
    "bert_masked_language_model",
    "build",
    "checkpointing",
    "dcgan_discriminator",
    "dcgan_generator",
    "decoder",
    "efficientnet",
    "encoder",
    "from_config",
    "from_gguf",
    "from_huggingface",
    "gpt2",
    "lenet",
    "load_torch_weights",
    "mlp",
    "mobilenet_v3",
    "pair_scores",
    "pair_vectors",
    "recurrent_language_model",
    "resnet",
    "resnext",
    "se_resnet",
    "se_resnext",
    "sentence_vectors",
    "synchronised",
    "t5",
    "unet",
    "vision",
    "whisper",
]

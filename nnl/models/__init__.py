# SPDX-License-Identifier: Apache-2.0
"""Networks from the literature, each a function of Variables.

A call makes its parameters in the current parameter scope, so two networks need two scopes:

>>> with nn.parameter_scope("teacher"):
...     y = resnet(x, depth=101, test=True)
"""

from nnl.models.bert import bert, bert_masked_language_model
from nnl.models.dcgan import dcgan_discriminator, dcgan_generator
from nnl.models.efficientnet import efficientnet
from nnl.models.gpt2 import gpt2
from nnl.models.lenet import lenet, mlp
from nnl.models.mobilenet_v3 import mobilenet_v3
from nnl.models.recurrent import recurrent_language_model
from nnl.models.resnet import resnet, resnext, se_resnet
from nnl.models.unet import unet

__all__ = [
    "bert",
    "bert_masked_language_model",
    "dcgan_discriminator",
    "dcgan_generator",
    "efficientnet",
    "gpt2",
    "lenet",
    "mlp",
    "mobilenet_v3",
    "recurrent_language_model",
    "resnet",
    "resnext",
    "se_resnet",
    "unet",
]

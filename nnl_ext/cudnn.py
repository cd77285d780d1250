# SPDX-License-Identifier: Apache-2.0
from functools import partial

from nnl.ext import cuda
from nnl.ext.cuda import *  # noqa: F403

context = partial(cuda.context, "cudnn")

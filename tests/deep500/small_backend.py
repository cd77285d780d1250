# SPDX-License-Identifier: Apache-2.0
"""A back end for thirteen operators in float64, to show how little one takes."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from nnl.deep500.contract import GRADIENT
from nnl.deep500.execution import ValueVisitor, VisitorNetwork


class SmallVisitor(ValueVisitor):
    simple = {
        "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "MatMul": torch.matmul,
        "Relu": torch.relu, "Tanh": torch.tanh,
    }  # fmt: skip

    def visit_Conv(self, node, x, w, b):
        return F.conv2d(x, w, b, padding=node.pads[:2])

    def visit_MaxPool(self, node, x):
        return F.max_pool2d(x, node.kernel_shape, node.strides)

    def visit_Flatten(self, node, x):
        return x.flatten(node.axis)

    def visit_Gemm(self, node, a, b, c):
        return a @ (b.T if node.transB else b) + c

    def visit_Softmax(self, node, x):
        return torch.softmax(x, node.axis)

    def visit_ReduceMean(self, node, x):
        return x.mean()

    def visit_SoftmaxCrossEntropyLoss(self, node, x, t):
        return F.cross_entropy(x, t.long())


class SmallNetwork(VisitorNetwork):
    backend, package = "small", "torch"
    visitor = SmallVisitor()

    def constant(self, value):
        return torch.tensor(np.asarray(value, np.float64))

    def variable(self, value):
        return self.constant(value).requires_grad_()

    def array(self, value):
        return value.detach().numpy().astype(np.float32)

    def _backprop(self, inputs):
        outs = self._run(self._given(inputs))
        for v in self.values.values():
            v.grad = None
        outs[[v.name for v in self.graph.outputs].index(self.loss)].backward()
        return self._results(outs)

    def _read(self, name):
        v = self.values[name.removesuffix(GRADIENT)]
        return self.array(v.grad if name.endswith(GRADIENT) else v)

    def _write(self, name, value):
        self.values[name].data = self.constant(value)

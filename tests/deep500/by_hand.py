# SPDX-License-Identifier: Apache-2.0
"""LeNet's training as somebody writes it for one framework: what the layer is measured against.

Every function takes nnl.deep500's network of zoo.lenet() and gives a step of gradient descent that
begins with its weights: a function of a batch that reads the scores and the loss and gives the
loss. Each has its framework's own layout of pictures and weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Step = Callable[[Any], float]
LR = 0.01


def torch_step(net: Any) -> Step:
    """On PyTorch, without torch.nn.Module, whose calls cost 50 us a step."""
    import torch
    import torch.nn.functional as TF

    w = [v.detach().clone().requires_grad_() for v in net.values.values()]
    optimizer = torch.optim.SGD(w, LR)

    def forward(x: Any) -> Any:
        h = torch.max_pool2d(torch.relu(torch.conv2d(x, w[0], None, 1, 1)), 2)
        h = torch.max_pool2d(torch.relu(torch.conv2d(h, w[1], None, 1, 1)), 2)
        h = torch.relu(TF.linear(torch.flatten(h, 1), w[2], w[3]))
        return TF.linear(h, w[4], w[5])

    def step(batch: Any) -> float:
        optimizer.zero_grad()
        scores = forward(torch.from_numpy(batch["x"]))
        loss = TF.cross_entropy(scores, torch.from_numpy(batch["label"]))
        loss.backward()
        optimizer.step()
        np.array(scores.detach().numpy())
        return loss.item()

    return step


def nnl_step(net: Any) -> Step:
    """On nnl: affine layers take their weights the other way around."""
    import nnl as nn
    import nnl.functions as F
    import nnl.solvers as S

    w = []
    for v in net.parameter.values():
        w.append(nn.Variable(v.shape[::-1] if v.ndim == 2 else v.shape, need_grad=True))
        w[-1].d = v.d.T if v.ndim == 2 else v.d
    made: list[Any] = []
    solver = S.Sgd(lr=LR)
    solver.set_parameters({str(i): v for i, v in enumerate(w)})

    def graph(batch: Any) -> None:
        x, t = nn.Variable(batch["x"].shape), nn.Variable((*batch["label"].shape, 1))
        h = F.max_pooling(F.relu(F.convolution(x, w[0], pad=(1, 1))), (2, 2))
        h = F.max_pooling(F.relu(F.convolution(h, w[1], pad=(1, 1))), (2, 2))
        scores = F.affine(F.relu(F.affine(h, w[2], w[3])), w[4], w[5])
        loss = F.mean(F.softmax_cross_entropy(scores, t))
        scores.persistent = True
        made.extend((x, t, scores, loss))

    def step(batch: Any) -> float:
        with nn.context_scope(net.context):
            if not made:
                graph(batch)
            x, t, scores, loss = made
            x.d, t.d = batch["x"], batch["label"][:, None]
            solver.zero_grad()
            loss.forward(clear_no_need_grad=True)
            loss.backward(clear_buffer=True)
            solver.update()
            np.array(scores.d)
            return float(loss.d)

    return step


def tensorflow_step(net: Any) -> Step:
    """On TensorFlow: one tf.function, channels last."""
    import tensorflow as tf

    def own(v: Any) -> Any:
        axes = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}[v.ndim]
        return v.transpose(axes)

    arrays = [own(v.numpy()) for v in net.values.values()]
    channels = arrays[1].shape[3]
    size = int(np.sqrt(arrays[2].shape[0] // channels))
    flat = arrays[2].reshape(channels, size, size, -1).transpose(1, 2, 0, 3)
    arrays[2] = flat.reshape(arrays[2].shape)  # pictures are flattened in another order
    w = [tf.Variable(a) for a in arrays]
    optimizer = tf.keras.optimizers.SGD(LR)
    optimizer.build(w)

    @tf.function
    def whole(x: Any, t: Any) -> Any:
        with tf.GradientTape() as tape:
            h = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, w[0], 1, "SAME")), 2, 2, "VALID")
            h = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(h, w[1], 1, "SAME")), 2, 2, "VALID")
            h = tf.reshape(h, (-1, w[2].shape[0]))
            scores = tf.matmul(tf.nn.relu(tf.matmul(h, w[2]) + w[3]), w[4]) + w[5]
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(t, scores)
            loss = tf.reduce_mean(each)
        optimizer.apply_gradients(zip(tape.gradient(loss, w), w, strict=True))
        return scores, loss

    def step(batch: Any) -> float:
        x = np.ascontiguousarray(batch["x"].transpose(0, 2, 3, 1))
        scores, loss = whole(tf.constant(x), tf.constant(batch["label"]))
        scores.numpy()
        return float(loss.numpy())

    return step


STEPS = {
    "nnl": nnl_step,
    "torch": torch_step,
    "tensorflow:compiled": tensorflow_step,
}

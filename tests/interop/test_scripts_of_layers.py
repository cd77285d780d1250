# SPDX-License-Identifier: Apache-2.0
"""NNabla's helpers for sequences, and layers with parameters as attributes, beside nnl's."""

import numpy as np
import pytest

from tests.interop.here import check_script

pytestmark = pytest.mark.interop


SEQUENCES = """
import nnabla.utils.rnn as rnn
nn.set_auto_forward(True)
parts = [nn.Variable.from_numpy_array(inputs[k]) for k in sorted(inputs)]
for batch_first in (False, True):
    padded = rnn.pad_sequence(parts, batch_first, padding_value=-1.0)
    outputs[f"padded{batch_first}"] = padded.d.copy()
    lengths = nn.Variable.from_numpy_array(np.array([p.shape[0] for p in parts]))
    packed = rnn.pack_padded_sequence(padded, lengths, batch_first, enforce_sorted=False)
    outputs[f"packed{batch_first}"] = packed.data.d.copy()
    outputs[f"sizes{batch_first}"] = packed.batch_sizes.d.copy()
    outputs[f"order{batch_first}"] = packed.sorted_indices.d.copy()
    outputs[f"back{batch_first}"] = packed.unsorted_indices.d.copy()
    again, lengths = rnn.pad_packed_sequence(packed, batch_first)
    outputs[f"again{batch_first}"], outputs[f"lengths{batch_first}"] = again.d, lengths.d
    again, _ = rnn.pad_packed_sequence(packed, batch_first, total_length=7)
    outputs[f"longer{batch_first}"] = again.d.copy()
packed = rnn.pack_sequence(parts, enforce_sorted=False)
outputs["whole"] = packed.data.d.copy()
nn.set_auto_forward(False)
"""


@pytest.mark.parametrize("rest", [(), (3,), (2, 2)])
def test_sequences_are_padded_and_packed(nnabla, rest):
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, *rest)).astype(np.float32) for n in (2, 5, 3, 1)]
    check_script(nnabla, SEQUENCES, {f"p{i}": p for i, p in enumerate(parts)}, rtol=0, atol=0)


FIXED = """
from nnabla.utils.rnn import _create_fixed_length_{kind} as network
a = {{k: nn.Variable.from_numpy_array(v, need_grad=True) for k, v in inputs.items()}}
states = [a[k] for k in ("h0", "c0") if k in a]
more = ("tanh",) if "{kind}" == "rnn" else ()
ys = network(a["x"], *states, a["w0"], a["w"], a["b"], 2, *more, 2, {bias})
loss = F.add_n(*[F.sum(y**2) for y in ys])
loss.forward()
for i, y in enumerate(ys):
    outputs[f"y{{i}}"] = y.d.copy()
for v in a.values():
    v.grad.zero()
loss.backward()
outputs.update({{f"g_{{k}}": v.g.copy() for k, v in a.items()}})
"""


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("kind", "gates", "rows"), [("rnn", (), ()), ("gru", (3,), (4,)), ("lstm", (4,), (4,))]
)
def test_recurrent_networks_step_by_step(nnabla, kind, gates, rows, bias):
    t, b, n, h = 3, 2, 4, 5
    rng = np.random.default_rng(0)
    shapes = {"x": (t, b, n), "h0": (2, 2, b, h), "w0": (2, *gates, h, n + h)}
    shapes |= {"w": (1, 2, *gates, h, 3 * h), "b": (2, 2, *rows, h)}
    if kind == "lstm":
        shapes["c0"] = shapes["h0"]
    inputs = {k: rng.normal(size=s).astype(np.float32) * 0.5 for k, s in shapes.items()}
    check_script(nnabla, FIXED.format(kind=kind, bias=bias), inputs)


LAYERS = """
from nnabla.experimental.parametric_function_class.module import Module
from nnabla.experimental.parametric_function_class.affine import Affine
from nnabla.experimental.parametric_function_class.convolution import Conv2d
from nnabla.experimental.parametric_function_class.batch_normalization import BatchNorm2d

class Net(Module):
    def __init__(self):
        self.conv = Conv2d(1, 4, (3, 3), pad=(1, 1), rng=np.random.RandomState(1))
        self.bn = BatchNorm2d(4)
        self.fc = Affine(4 * 36, 5, rng=np.random.RandomState(2))
    def __call__(self, x, test=False):
        return self.fc(F.relu(self.bn(self.conv(x), test)))

net = Net()
x = nn.Variable.from_numpy_array(inputs["x"])
loss = F.mean(net(x) ** 2)
solver = S.Sgd(0.1)
solver.set_parameters(net.get_parameters())
for step in range(5):
    loss.forward(clear_no_need_grad=True)
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    solver.update()
    outputs[f"loss{step}"] = loss.d.copy()
test = net(x, test=True)
test.forward()
outputs["test"] = test.d.copy()
outputs.update({k: v.d.copy() for k, v in net.get_parameters(grad_only=False).items()})
"""


def test_layers_with_parameters_as_attributes_train(nnabla):
    x = np.random.default_rng(0).normal(size=(4, 1, 6, 6)).astype(np.float32)
    check_script(nnabla, LAYERS, {"x": x})

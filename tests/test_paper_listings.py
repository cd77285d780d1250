# SPDX-License-Identifier: Apache-2.0
"""The listings of the NNL paper (arXiv:2102.06725) run with `nnabla` changed to `nnl`.

Where a listing stands for part of a script ("..."), the test supplies the rest.
"""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S

LISTING_1 = """
import numpy as np
import nnl as nn
import nnl.parametric_functions as PF

# Define input variable and computational graph
x = nn.Variable((16, 10), need_grad=True)
y = PF.affine(x, 5)

# Compute output for some random input
x.d = np.random.random(x.shape)
y.forward()

# Compute gradient with respect to input and parameters
y.backward()

# show all the trainable parameters assigned to the existing layers
nn.get_parameters()
"""

LISTING_2 = """
from nnl.ext_utils import get_extension_context
nn.set_default_context(get_extension_context('{name}'))
"""

LISTING_3 = """
params = [x.grad for x in nn.get_parameters().values()]
loss.backward(clear_buffer=True)
"""

LISTING_4 = """
h = PF.convolution(x, 16, (5, 5), name="conv1")
h = F.max_pooling(h, (2, 2))
h = F.relu(h, inplace=False)
h = PF.convolution(h, 16, (5, 5), name="conv2")
h = F.max_pooling(h, (2, 2))
h = F.relu(h, inplace=False)
h = PF.affine(h, 50, name="affine3")
h = F.relu(h, inplace=False)
h = PF.affine(h, 10, name="affine4")
"""

LISTING_6 = """
# Use loss scaling to prevent underflow
loss_scale = 8
loss.backward(loss_scale)
solver.scale_grad(1. / loss_scale)  # some gradient clipping
solver.update()

# Use dynamic loss scaling to prevent overflow/underflow
scaling_factor = 2
counter = 0
interval = 2000
for _ in range(3):
    loss.forward(clear_no_need_grad=True)
    solver.zero_grad()
    loss.backward(loss_scale, clear_buffer=True)
    if solver.check_inf_or_nan_grad():
        loss_scale /= scaling_factor
        counter = 0
    else:
        solver.scale_grad(1. / loss_scale) # some gradient clipping
        solver.update()
        if counter > interval:
            loss_scale *= scaling_factor
            counter = 0
        counter += 1
"""


@pytest.fixture(autouse=True)
def fresh():
    context = nn.get_current_context()
    yield
    nn.set_default_context(context)


def classifier():
    """The network of listing 4 with a loss, on random images."""
    names = {"x": nn.Variable((4, 1, 28, 28)), "F": F, "PF": PF}
    exec(LISTING_4, names)
    t = nn.Variable((4, 1))
    rng = np.random.default_rng(0)
    names["x"].d, t.d = rng.random((4, 1, 28, 28)), rng.integers(0, 10, (4, 1))
    loss = F.mean(F.softmax_cross_entropy(names["h"], t))
    return names, loss


def test_listing_1_affine():
    names = {}
    np.random.seed(0)
    exec(LISTING_1, names)
    w, b = (nn.get_parameters()[f"affine/{k}"] for k in "Wb")
    x, y = names["x"], names["y"]
    np.testing.assert_allclose(y.d, x.d @ w.d + b.d, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(x.g, np.ones((16, 5)) @ w.d.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(w.g, x.d.T @ np.ones((16, 5)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(b.g, np.full(5, 16))


def test_listing_2_switches_the_context():
    exec(LISTING_2.format(name="cpu"), {"nn": nn})
    assert nn.get_current_context().backend == ["cpu:float"]


def test_listing_2_says_what_is_missing_for_cudnn():
    with pytest.raises(NotImplementedError, match="'cudnn' needs NVIDIA's driver"):
        exec(LISTING_2.format(name="cudnn"), {"nn": nn})
    assert nn.get_current_context().backend == ["cpu:float"]


def test_listing_3_gradients_are_the_arrays_taken_before_backward():
    _, loss = classifier()
    loss.forward(clear_no_need_grad=True)
    names = {"nn": nn, "loss": loss}
    exec(LISTING_3, names)
    assert len(names["params"]) == 8
    for grad, v in zip(names["params"], nn.get_parameters().values(), strict=True):
        assert grad is v.grad and np.abs(grad.data).sum() > 0


def test_listing_4_lenet():
    names, _ = classifier()
    names["h"].forward()
    shapes = {k: v.shape for k, v in nn.get_parameters().items()}
    assert names["h"].shape == (4, 10) and np.isfinite(names["h"].d).all()
    assert shapes == {
        "conv1/conv/W": (16, 1, 5, 5),
        "conv1/conv/b": (16,),
        "conv2/conv/W": (16, 16, 5, 5),
        "conv2/conv/b": (16,),
        "affine3/affine/W": (256, 50),
        "affine3/affine/b": (50,),
        "affine4/affine/W": (50, 10),
        "affine4/affine/b": (10,),
    }


def test_listing_6_loss_scaling_trains_as_without():
    """A power of two scales exactly, so scaled and unscaled training give the same bits."""
    results = []
    for scaled in (True, False):
        nn.clear_parameters()
        nn.random.set_parameter_seed(313)
        _, loss = classifier()
        solver = S.Sgd(0.1)
        solver.set_parameters(nn.get_parameters())
        loss.forward()
        names = {"loss": loss, "solver": solver}
        if scaled:
            exec(LISTING_6, names)
            assert names["counter"] == 3 and names["loss_scale"] == 8
        else:
            loss.backward()
            solver.update()
            for _ in range(3):
                loss.forward()
                solver.zero_grad()
                loss.backward()
                solver.update()
        results.append([v.d.copy() for v in nn.get_parameters().values()])
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)

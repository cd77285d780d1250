# SPDX-License-Identifier: Apache-2.0
"""Sorting and choosing remember places for their gradients."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from tests.graph.fusion import leaf, passes_are_verified, steps_of  # noqa: F401

pytestmark = pytest.mark.usefixtures("passes_are_verified")

CALLS = {
    "sort": lambda x: F.sort(x, axis=1),
    "sort, down": lambda x: F.sort(x, axis=0, reverse=True),
    "both": lambda x: F.sort(x, axis=1, with_index=True)[0],
    "top_k_data": lambda x: F.top_k_data(x, 3, base_axis=1),
    "least": lambda x: F.top_k_data(x, 2, base_axis=0, largest=False),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("shape", [(5, 40), (3, 7), (4, 33)], ids=str)
def test_one_step_gives_values_and_places(name, shape):
    def build():
        x = leaf(*shape)
        return CALLS[name](F.tanh(x)), [x]

    steps = steps_of(build)
    assert steps["sort"] + steps["top_k_data"] == 1


def test_places_of_what_is_overwritten_in_between_are_found_again():
    x = nn.Variable.from_numpy_array(np.array([[3.0, 1.0, 2.0]], np.float32))
    with nn.auto_forward(False):
        first = F.sort(x, axis=1)
        changed = F.assign(x, F.constant(0.5, (1, 3)) * F.identity(first))
        places = F.sort(changed, axis=1, only_index=True)
        y = F.sink(first, changed, places)
    y.forward()
    assert first.d.tolist() == [[1, 2, 3]] and places.d.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("train", [True, False])
def test_several_calls_become_one_step(train):
    def build():
        x = leaf(4, 40)
        y = F.sort(x, axis=1)
        again, places = F.sort(x, axis=1, with_index=True)
        return y * again + places * F.sort(x, axis=1, only_index=True), [x]

    assert steps_of(build, train=train)["sort"] == 1

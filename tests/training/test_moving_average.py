# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import nnl as nn
from nnl.training.moving_average import MovingAverage


def test_averages_are_used_where_they_are_wanted_alone():
    w = nn.Variable.from_numpy_array(np.array([1.0, 2.0], np.float32))
    average = MovingAverage({"w": w}, 0.5)
    want = w.d.copy()
    for n in range(1, 9):
        w.d = w.d + 1
        average.update()
        keep = min(0.5, n / (9 + n))
        want = keep * want + (1 - keep) * w.d
    np.testing.assert_allclose(average.values["w"].data, want, rtol=1e-6)
    with average.instead():
        np.testing.assert_allclose(w.d, want, rtol=1e-6)
    np.testing.assert_array_equal(w.d, [9.0, 10.0])
    with pytest.raises(ValueError, match=r"MovingAverage: decay is 1.0, wanted a number in \[0, 1"):
        MovingAverage({"w": w}, 1.0)

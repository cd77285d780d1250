# SPDX-License-Identifier: Apache-2.0
"""Time series: the next 48 values of a chaotic one, from the last 96, with how sure to be of them.

The Mackey-Glass equation with a delay of 17, with noise; blocks of N-BEATS each explain a part of
the past and add to the future, as three quantiles. The last fifth is held out. Beside: a linear
forecast (ridge regression), and the last value. Source: Oreshkin et al., arXiv:1905.10437. Expected
(root of the mean squared error, in standard deviations; share of values between the quantiles):

    {"error": 0.0403, "linear": 0.4431, "last value": 1.4244, "between": 0.7614, "seconds": 14}
"""

import numpy as np
from common import answers, fit, main

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF

PAST, FUTURE, QUANTILES = 96, 48, (0.1, 0.5, 0.9)


def series(count, rng):
    """dx/dt = 0.2 x(t - 17) / (1 + x(t - 17)^10) - 0.1 x, in steps of 0.1, of which each tenth."""
    x = [1.2 + 0.1 * rng.normal()] * 171
    for _ in range(10 * (count + 200)):
        x.append(x[-1] + 0.1 * (0.2 * x[-171] / (1 + x[-171] ** 10) - 0.1 * x[-1]))
    x = np.array(x[-10 * count :: 10])
    return ((x - x.mean()) / x.std() + 0.03 * rng.normal(size=count)).astype(np.float32)


def network(past):
    """Quantiles of the future, (B, FUTURE, 3)."""
    rest, found = past, 0.0
    for i in range(3):
        with nn.parameter_scope(f"block{i}"):
            h = rest
            for k in range(2):
                h = F.relu(PF.affine(h, 128, name=f"hidden{k}"))
            rest = rest - PF.affine(h, PAST, name="past")
            found = found + PF.affine(h, FUTURE * 3, name="future")
    return F.reshape(found, (-1, FUTURE, 3))


def loss_of(past, future):
    """Pinball loss: above the quantile q an error counts q, below it 1 - q."""
    q = nn.Variable.from_numpy_array(np.array(QUANTILES, np.float32).reshape(1, 1, 3))
    error = F.reshape(future, (*future.shape, 1)) - network(past)
    return F.mean(F.maximum2(q * error, (q - 1) * error))


def run(steps=2000):
    from sklearn.linear_model import Ridge

    x = series(6000, np.random.default_rng(0))
    windows = np.lib.stride_tricks.sliding_window_view(x, PAST + FUTURE)
    known, held_out = (
        windows[: 4 * len(windows) // 5 - PAST - FUTURE],
        windows[4 * len(windows) // 5 :],
    )

    def batch(rng):
        rows = known[rng.integers(len(known), size=64)]
        return [rows[:, :PAST], rows[:, PAST:]]

    fit(loss_of, batch, steps)
    past, truth = held_out[:, :PAST], held_out[:, PAST:]
    low, middle, high = answers(network, past).transpose(2, 0, 1)
    linear = Ridge(1e-2).fit(known[:, :PAST], known[:, PAST:]).predict(past)

    def error(said):
        return np.sqrt(np.mean((said - truth) ** 2))

    return {
        "error": error(middle), "linear": error(linear), "last value": error(past[:, -1:]),
        "between": ((low < truth) & (truth < high)).mean(),
    }  # fmt: skip


if __name__ == "__main__":
    main(run)

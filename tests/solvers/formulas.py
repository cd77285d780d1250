# SPDX-License-Identifier: Apache-2.0
"""The update rules in float64, one line of mathematics per line, from the papers.

Every function takes the weight, the gradient, the number t of this step (1 for the first), the
states by name (changed in place; absent names are zeros) and the hyperparameters, and returns the
new weight. Nothing here is shared with what is tested.
"""

from __future__ import annotations

import numpy as np
from numpy import abs, maximum, sign, sqrt
from numpy.linalg import norm


def sgd(w, g, t, s, lr=1e-3):
    return w - lr * g


def momentum(w, g, t, s, lr=1e-3, momentum=0.9):
    """Qian 1999, with the rate inside the velocity."""
    s["m"] = momentum * s["m"] + lr * g
    return w - s["m"]


def nesterov(w, g, t, s, lr=1e-3, momentum=0.9):
    """Sutskever et al. 2013, rewritten for gradients taken at w."""
    before = s["m"]
    s["m"] = momentum * before - lr * g
    return w - momentum * before + (1 + momentum) * s["m"]


def sgdw(w, g, t, s, lr=1e-3, momentum=0.9, wd=1e-4, lr0=1e-3):
    """Loshchilov and Hutter 2019, algorithm 1, with the schedule multiplier lr / lr0."""
    s["m"] = momentum * s["m"] + lr * g
    return w - s["m"] - lr / lr0 * wd * w


def lars(w, g, t, s, lr=1e-3, momentum=0.9, coefficient=1e-3, eps=1e-6, wd=0.0):
    """You, Gitman and Ginsburg 2017, algorithm 1."""
    ratio = coefficient * norm(w) / (norm(g) + wd * norm(w)) if norm(w) >= eps else 1.0
    s["v"] = momentum * s["v"] + lr * ratio * (g + wd * w)
    return w - s["v"]


def adadelta(w, g, t, s, lr=1.0, decay=0.95, eps=1e-6):
    """Zeiler 2012, algorithm 1."""
    s["e_sqr_grad"] = decay * s["e_sqr_grad"] + (1 - decay) * g**2
    delta = sqrt((s["e_sqr_delta"] + eps) / (s["e_sqr_grad"] + eps)) * g
    s["e_sqr_delta"] = decay * s["e_sqr_delta"] + (1 - decay) * delta**2
    return w - lr * delta


def adagrad(w, g, t, s, lr=1e-2, eps=1e-8):
    """Duchi, Hazan and Singer 2011."""
    s["v"] = s["v"] + g**2
    return w - lr * g / (sqrt(s["v"]) + eps)


def rmsprop(w, g, t, s, lr=1e-3, decay=0.9, eps=1e-8):
    """Tieleman and Hinton 2012, lecture 6e."""
    s["v"] = decay * s["v"] + (1 - decay) * g**2
    return w - lr * g / (sqrt(s["v"]) + eps)


def rmspropgraves(w, g, t, s, lr=1e-4, decay=0.95, momentum=0.9, eps=1e-4):
    """Graves 2013, equations 38 to 45."""
    s["n"] = decay * s["n"] + (1 - decay) * g**2
    s["g"] = decay * s["g"] + (1 - decay) * g
    s["d"] = momentum * s["d"] - lr * g / sqrt(s["n"] - s["g"] ** 2 + eps)
    return w + s["d"]


def _moments(g, s, first, second, beta1, beta2):
    s[first] = beta1 * s[first] + (1 - beta1) * g
    s[second] = beta2 * s[second] + (1 - beta2) * g**2


def _rate(alpha, t, beta1, beta2):
    return alpha * sqrt(1 - beta2**t) / (1 - beta1**t)


def adam(w, g, t, s, alpha=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    """Kingma and Ba 2015, the faster form at the end of section 2."""
    _moments(g, s, "mean", "var", beta1, beta2)
    return w - _rate(alpha, t, beta1, beta2) * s["mean"] / (sqrt(s["var"]) + eps)


def adamw(w, g, t, s, alpha=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, wd=1e-4, alpha0=1e-3):
    """Loshchilov and Hutter 2019, algorithm 2, with the schedule multiplier alpha / alpha0."""
    return adam(w, g, t, s, alpha, beta1, beta2, eps) - alpha / alpha0 * wd * w


def adamax(w, g, t, s, alpha=2e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    """Kingma and Ba 2015, algorithm 2."""
    s["m"] = beta1 * s["m"] + (1 - beta1) * g
    s["u"] = maximum(beta2 * s["u"], abs(g))
    return w - alpha / (1 - beta1**t) * s["m"] / (s["u"] + eps)


def amsgrad(w, g, t, s, alpha=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, bias_correction=False):
    """Reddi, Kale and Kumar 2018, algorithm 2; with Adam's bias correction if asked for."""
    _moments(g, s, "m", "v", beta1, beta2)
    s["v_hat"] = maximum(s["v_hat"], s["v"])
    rate = _rate(alpha, t, beta1, beta2) if bias_correction else alpha
    return w - rate * s["m"] / (sqrt(s["v_hat"]) + eps)


def _bounded(rate, final_lr, gamma, t):
    return np.clip(rate, final_lr * (1 - 1 / (gamma * t + 1)), final_lr * (1 + 1 / (gamma * t)))


def adabound(
    w, g, t, s, alpha=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, final_lr=0.1, gamma=1e-3, alpha0=1e-3
):
    """Luo et al. 2019, algorithm 2, with final_lr following the schedule alpha / alpha0."""
    _moments(g, s, "mean", "var", beta1, beta2)
    rate = _rate(alpha, t, beta1, beta2) / (sqrt(s["var"]) + eps)
    return w - _bounded(rate, final_lr * alpha / alpha0, gamma, t) * s["mean"]


def amsbound(
    w,
    g,
    t,
    s,
    alpha=1e-3,
    beta1=0.9,
    beta2=0.999,
    eps=1e-8,
    final_lr=0.1,
    gamma=1e-3,
    bias_correction=False,
    alpha0=1e-3,
):
    """Luo et al. 2019, algorithm 3."""
    _moments(g, s, "m", "v", beta1, beta2)
    s["v_hat"] = maximum(s["v_hat"], s["v"])
    rate = _rate(alpha, t, beta1, beta2) if bias_correction else alpha
    rate = rate / (sqrt(s["v_hat"]) + eps)
    return w - _bounded(rate, final_lr * alpha / alpha0, gamma, t) * s["m"]


def adabelief(
    w,
    g,
    t,
    s,
    alpha=1e-3,
    beta1=0.9,
    beta2=0.999,
    eps=1e-8,
    wd=0.0,
    amsgrad=False,
    weight_decouple=False,
    fixed_decay=False,
    rectify=False,
):
    """Zhuang et al. 2020, algorithm 2; rectified as in Liu et al. 2020, algorithm 2."""
    s["mean"] = beta1 * s["mean"] + (1 - beta1) * g
    s["var"] = beta2 * s["var"] + (1 - beta2) * (g - s["mean"]) ** 2 + eps
    used = s["var"]
    if amsgrad:
        used = s["s_max"] = maximum(s["s_max"], s["var"])
    decay = wd * (1 if fixed_decay else alpha) * w if weight_decouple else 0.0
    mean, root = s["mean"] / (1 - beta1**t), sqrt(used / (1 - beta2**t))
    if not rectify:
        return w - alpha * mean / (root + eps) - decay
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * t * beta2**t / (1 - beta2**t)
    if length <= 4:  # the paper divides by 1 - beta1^t here, NNabla does not
        return w - alpha * s["mean"] - decay
    r = sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
    return w - r * alpha * mean / (root + eps) - decay


def lamb(
    w,
    g,
    t,
    s,
    eta=1e-3,
    beta1=0.9,
    beta2=0.999,
    gamma_l=0.0,
    gamma_u=10.0,
    eps=1e-6,
    bias_correction=False,
    wd=0.0,
):
    """You et al. 2020, algorithm 2."""
    _moments(g, s, "mean", "var", beta1, beta2)
    m, v = s["mean"], s["var"]
    if bias_correction:
        m, v = m / (1 - beta1**t), v / (1 - beta2**t)
    r = m / (sqrt(v) + eps) + wd * w
    return w - eta * np.clip(norm(w), gamma_l, gamma_u) / norm(r) * r


def lion(w, g, t, s, lr=1e-4, beta1=0.9, beta2=0.99, wd=0.0):
    """Chen et al. 2023, algorithm 2."""
    u = sign(beta1 * s["m"] + (1 - beta1) * g)
    s["m"] = beta2 * s["m"] + (1 - beta2) * g
    return w - lr * (u + wd * w)


def muon(w, g, t, s, lr=1e-3, momentum=0.95, wd=0.1, nesterov=True, steps=5, match=True):
    """Jordan et al. 2024; step lengths of Liu et al. 2025, section 2.2; AdamW for other arrays."""
    if w.ndim != 2:
        return adamw(w, g, t, s, lr, beta2=0.95, wd=wd * lr, alpha0=lr)
    s["m"] = momentum * s["m"] + (1 - momentum) * g
    d = momentum * s["m"] + (1 - momentum) * g if nesterov else s["m"]
    u, values, v = np.linalg.svd(d, full_matrices=False)
    values = values / maximum(norm(d), 1e-7)
    for _ in range(steps):  # a polynomial in the matrix is that of its singular values
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    rows, columns = w.shape
    factor = 0.2 * sqrt(max(rows, columns)) if match else sqrt(max(1, rows / columns))
    return w - lr * wd * w - lr * factor * (u * values) @ v

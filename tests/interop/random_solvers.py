# SPDX-License-Identifier: Apache-2.0
"""Random uses of solvers: hyperparameters, gradients that come or do not, and what is done to both.

What docs/differences.md names is not written: AdaBelief with amsgrad, AMSBound, gradients
after Lars, the count of steps of Sgd, Lamb with an eps that its step falls below.
"""

from __future__ import annotations

import numpy as np

BETAS = {"beta1": (0.5, 0.95), "beta2": (0.8, 0.999)}
RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "Sgd": {"lr": (0.01, 0.5)},
    "SgdW": {"lr": (0.01, 0.5), "momentum": (0.1, 0.95), "wd": (0, 0.1)},
    "Momentum": {"lr": (0.01, 0.5), "momentum": (0.1, 0.95)},
    "Nesterov": {"lr": (0.01, 0.5), "momentum": (0.1, 0.95)},
    "Lars": {"lr": (0.1, 1), "momentum": (0.1, 0.95), "coefficient": (0.01, 0.1)},
    "Adadelta": {"lr": (0.1, 1), "decay": (0.5, 0.99), "eps": (1e-6, 1e-2)},
    "Adagrad": {"lr": (0.01, 0.5), "eps": (1e-8, 1e-2)},
    "RMSprop": {"lr": (0.01, 0.1), "decay": (0.5, 0.99), "eps": (1e-8, 1e-2)},
    "RMSpropGraves": {
        "lr": (0.01, 0.1), "decay": (0.5, 0.99), "momentum": (0.1, 0.9), "eps": (1e-3, 0.1)
    },
    "Adam": {"alpha": (0.01, 0.1), **BETAS, "eps": (1e-8, 1e-2)},
    "AdamW": {"alpha": (0.01, 0.1), **BETAS, "eps": (1e-8, 1e-2), "wd": (0, 0.1)},
    "Adamax": {"alpha": (0.01, 0.1), **BETAS, "eps": (1e-8, 1e-2)},
    "AMSGRAD": {"alpha": (0.01, 0.1), **BETAS, "eps": (1e-8, 1e-2)},
    "AdaBound": {"alpha": (0.01, 0.1), **BETAS, "final_lr": (0.01, 0.5), "gamma": (1e-3, 0.1)},
    "AdaBelief": {"alpha": (0.01, 0.1), **BETAS, "eps": (1e-8, 1e-1), "wd": (0, 0.1)},
    "Lamb": {
        "eta": (0.01, 0.1), **BETAS, "gamma_l": (0, 0.1), "gamma_u": (0.5, 10), "eps": (1e-7, 1e-6)
    },
    "Lion": {"lr": (0.001, 0.1), **BETAS},
}  # fmt: skip
FLAGS = {
    "AdaBelief": ("weight_decouple", "fixed_decay", "rectify"),
    "AMSGRAD": ("bias_correction",),
    "Lamb": ("bias_correction",),
}
CALLS = (
    "s.weight_decay({:.4g})", "s.clip_grad_by_norm({:.4g})", "s.scale_grad({:.4g})",
    "s.set_learning_rate({:.4g})", "s.zero_grad()", "s.update()",
    "s.set_parameters(w, reset=False, retain_state=True)", "s.set_parameters(w)",
    "s.remove_parameters(['w1'])", "s.clear_parameters()",
    "s.set_parameters({{'w0': w['w0']}}, reset=True)",
)  # fmt: skip


def script(seed: int, kind: str = "") -> str:
    """The text of a random script."""
    rng = np.random.default_rng(seed)
    name = list(RANGES)[int(rng.integers(len(RANGES)))]
    given = [f"{k}={rng.uniform(*v):.4g}" for k, v in RANGES[name].items() if rng.random() < 0.7]
    given += [f"{flag}=True" for flag in FLAGS.get(name, ()) if rng.random() < 0.3]
    lines = [
        f"r = np.random.RandomState({seed})",
        "w = {f'w{i}': nn.Variable(s, need_grad=True) for i, s in enumerate([(3,), (2, 2), (1,)])}",
        "for v in w.values(): v.d = r.randn(*v.shape)",
        f"s = S.{name}({', '.join(given)})",
        "s.set_parameters(w)",
    ]
    for k in range(int(rng.integers(3, 9))):
        for i in range(3):
            gone = ".grad.zero()" if rng.random() < 0.2 else f".g = r.randn(*w['w{i}'].shape)"
            lines.append(f"w['w{i}']{gone}")
        for call in rng.choice(CALLS, int(rng.integers(0, 3)), p=weights(len(CALLS))):
            if (name, call) != ("Lars", "s.update()"):
                lines.append(call.format(rng.uniform(0.001, 0.3)))
        lines.append("s.update()")
        lines.append(f"for n, v in w.items(): outputs[f'{k}/{{n}}'] = v.d.copy()")
        if name != "Lars":
            lines.append(f"for n, v in w.items(): outputs[f'{k}/g/{{n}}'] = v.g.copy()")
        lines += [
            f"outputs['{k}/rate'] = np.array(s.learning_rate())",
            f"outputs['{k}/of'] = np.array([n in s.get_parameters() for n in w])",
        ]
        if name != "Sgd":
            t = f"outputs[f'{k}/t/{{n}}'] = np.array(state.t)"
            lines.append(f"for n, state in s.get_states().items(): {t}")
    return "\n".join(lines)


def weights(n: int) -> np.ndarray:
    """The first six of the calls come often."""
    p = np.array([3.0] * 6 + [1.0] * (n - 6))
    return p / p.sum()

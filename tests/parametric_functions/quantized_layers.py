# SPDX-License-Identifier: Apache-2.0
"""Calls of quantized layers whose parameters are compared with those that NNabla makes.

As `layers.py`; the expected parameters are in `quantized_initial_values.json`.
"""

import numpy as np

FAMILIES = (
    "binary_connect",
    "binary_weight",
    "inq",
    "fixed_point_quantized",
    "pow2_quantized",
    "pruned",
    "min_max_quantized",
)


def cases(nn, PF, initializer):
    """The calls by name."""

    def v(*shape):
        return nn.Variable(shape)

    def rng():
        return np.random.RandomState(5)

    def image():
        return v(2, 4, 8, 8)

    normal, uniform = initializer.NormalInitializer, initializer.UniformInitializer
    constant = initializer.ConstantInitializer
    made = {}
    for name in FAMILIES:
        affine, convolution = getattr(PF, f"{name}_affine"), getattr(PF, f"{name}_convolution")
        made |= {
            f"{name}_{case}": call
            for case, call in {
                "affine": lambda f=affine: f(v(2, 3, 4), 5),
                "affine_base_axis": lambda f=affine: f(v(2, 3, 4), (5, 2), base_axis=2, rng=rng()),
                "affine_fixed": lambda f=affine: f(
                    v(2, 3, 4), 5, with_bias=False, fix_parameters=True
                ),
                "affine_initializers": lambda f=affine: f(
                    v(2, 3), 5, w_init=normal(0.1), b_init=uniform((0, 1)), name="n"
                ),
                "affine_twice": lambda f=affine: [f(v(2, 3, 4), 5) for _ in range(2)],
                "conv": lambda f=convolution: f(image(), 6, (3, 3)),
                "conv_base_axis": lambda f=convolution: f(
                    v(2, 2, 4, 8, 8), 6, (3, 3), base_axis=2, rng=rng()
                ),
                "conv1d": lambda f=convolution: f(v(2, 4, 8), 6, (3,), pad=(1,), stride=(2,)),
            }.items()
        }
    for name in FAMILIES[3:]:
        switch = "prune" if name == "pruned" else "quantize"
        for which in "wb":
            made[f"{name}_without_{which}"] = lambda name=name, switch=switch, which=which: getattr(
                PF, f"{name}_convolution"
            )(image(), 6, (3, 3), group=2, **{f"{switch}_{which}": False})
    return made | {
        "binary_connect_wb": lambda: PF.binary_connect_affine(v(2, 3), 5, wb_init=normal()),
        "binary_weight_wb": lambda: PF.binary_weight_convolution(
            image(), 6, (3, 3), wb_init=constant(3), b_init=normal()
        ),
        "inq_indicators": lambda: PF.inq_affine(v(2, 3), 5, i_init=constant(1)),
        "min_max_quantized_channel_last": lambda: PF.min_max_quantized_convolution(
            v(2, 8, 8, 4), 6, (3, 3), channel_last=True
        ),
        "min_max_quantized_ranges": lambda: PF.min_max_quantized_affine(
            v(2, 3),
            5,
            ql_min_w=1,
            ql_max_w=15,
            qr_min_w_init=normal(),
            qr_max_w_init=uniform(),
            qr_min_b_init=constant(-2),
            ql_max_b=7.5,
            w_min_max=True,
        ),
        "min_max_quantize": lambda: PF.min_max_quantize(image()),
        "min_max_quantize_average": lambda: PF.min_max_quantize(
            image(), 1, 7, x_min_max=True, ema=True, name="q"
        ),
        "min_max_quantize_variables": lambda: PF.min_max_quantize(
            image(), v(1, 4, 1, 1), v(1, 4, 1, 1), fix_parameters=True
        ),
    }

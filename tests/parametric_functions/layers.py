# SPDX-License-Identifier: Apache-2.0
"""Calls of parametric functions whose parameters are compared with those that NNabla makes.

Each is written for `nn`, `PF` and the initializers of either framework. The file with the expected
parameters, `initial_values.json`, was made by running them under NNabla 1.39 after `nn.seed(313)`:
per parameter its name, shape, need_grad, dtype and the first 16 digits of the SHA-256 of its
bytes; and the next number of the parameter generator, which tells how much was drawn.
"""

import numpy as np


def cases(nn, PF, initializer):
    """The calls by name."""

    def v(*shape):
        return nn.Variable(shape)

    def rng():
        return np.random.RandomState(5)

    def ramp(*shape):
        return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 7

    def image():
        return v(2, 4, 8, 8)

    def steps(states=1, layers=2, directions=1):
        return [v(5, 2, 3)] + [v(layers, directions, 2, 4) for _ in range(states)]

    def q():
        return v(5, 2, 12)

    normal, uniform = initializer.NormalInitializer, initializer.UniformInitializer
    bn_init = {
        "gamma": uniform((0, 1)),
        "beta": normal(),
        "mean": ramp(1, 4, 1, 1),
        "var": initializer.ConstantInitializer(3),
    }
    return {
        "affine": lambda: PF.affine(v(2, 3, 4), 5),
        "affine_base_axis": lambda: PF.affine(v(2, 3, 4), (5, 2), base_axis=2),
        "affine_without_bias": lambda: PF.affine(v(2, 3, 4), 5, with_bias=False, name="fc"),
        "affine_rng": lambda: PF.affine(v(2, 3, 4), 5, rng=rng()),
        "affine_initializers": lambda: PF.affine(
            v(2, 3), 5, w_init=normal(0.1), b_init=uniform((-1, 2))
        ),
        "affine_fixed": lambda: PF.affine(v(2, 3), 5, fix_parameters=True),
        "affine_arrays": lambda: PF.affine(v(2, 3), 4, w_init=ramp(3, 4), b_init=ramp(4)),
        "two_affines": lambda: (PF.affine(v(2, 3), 5, name="a"), PF.affine(v(2, 3), 5, name="b")),
        "affine_nested_name": lambda: PF.affine(v(2, 3), 5, name="a/b"),
        "embed": lambda: PF.embed(v(2, 3), 10, 4),
        "embed_initializer": lambda: PF.embed(v(2, 3), 10, 4, initializer=normal()),
        "conv": lambda: PF.convolution(image(), 6, (3, 3), group=2),
        "conv_channel_last": lambda: PF.convolution(v(2, 8, 8, 4), 6, (3, 3), channel_last=True),
        "conv_rng": lambda: PF.convolution(image(), 6, (3, 3), rng=rng(), with_bias=False),
        "conv_base_axis": lambda: PF.convolution(v(2, 2, 4, 8, 8), 6, (3, 3), base_axis=2),
        "conv1d": lambda: PF.convolution(v(2, 4, 8), 6, (3,), pad=(1,), stride=(2,), dilation=(2,)),
        "deconv": lambda: PF.deconvolution(image(), 6, (3, 3), group=2),
        "deconv_channel_last": lambda: PF.deconvolution(
            v(2, 8, 8, 4), 6, (3, 3), channel_last=True
        ),
        "depthwise": lambda: PF.depthwise_convolution(image(), (3, 3), multiplier=2),
        "depthwise_rng": lambda: PF.depthwise_convolution(image(), (3, 3), pad=(1, 1), rng=rng()),
        "depthwise_deconv": lambda: PF.depthwise_deconvolution(image(), (3, 3), divisor=2),
        "bn": lambda: PF.batch_normalization(image()),
        "bn_last_axis": lambda: PF.batch_normalization(v(2, 8, 8, 4), axes=[3]),
        "bn_two_axes": lambda: PF.batch_normalization(image(), axes=[1, 2]),
        "bn_without_scale": lambda: PF.batch_normalization(image(), no_scale=True),
        "bn_without_bias": lambda: PF.batch_normalization(image(), no_bias=True),
        "bn_without_both": lambda: PF.batch_normalization(image(), no_bias=True, no_scale=True),
        "bn_fixed": lambda: PF.batch_normalization(image(), fix_parameters=True),
        "bn_initializers": lambda: PF.batch_normalization(image(), param_init=bn_init),
        "fused_bn": lambda: PF.fused_batch_normalization(image(), image()),
        "fused_bn_bare": lambda: PF.fused_batch_normalization(image(), no_scale=True, no_bias=True),
        "mean_subtraction": lambda: PF.mean_subtraction(image()),
        "mean_subtraction_fixed": lambda: PF.mean_subtraction(image(), 2, fix_parameters=True),
        "layer_norm": lambda: PF.layer_normalization(image()),
        "layer_norm_axes": lambda: PF.layer_normalization(
            image(), batch_axis=[0, 2], param_init={"gamma": normal()}
        ),
        "instance_norm": lambda: PF.instance_normalization(image()),
        "instance_norm_axes": lambda: PF.instance_normalization(
            v(2, 3, 5, 4), channel_axis=3, batch_axis=[0, 1], no_bias=True
        ),
        "group_norm": lambda: PF.group_normalization(image(), 2),
        "group_norm_last_axis": lambda: PF.group_normalization(
            v(2, 3, 5, 4), 2, channel_axis=3, fix_parameters=True
        ),
        "prelu": lambda: PF.prelu(image()),
        "prelu_channels": lambda: PF.prelu(image(), base_axis=2, shared=False),
        "prelu_initializer": lambda: PF.prelu(image(), slope_init=uniform(), shared=False),
        "rnn": lambda: PF.rnn(*steps(), num_layers=2),
        "rnn_twice": lambda: [PF.rnn(*steps(), num_layers=2) for _ in range(2)],
        "rnn_both_ways": lambda: PF.rnn(*steps(1, 3, 2), num_layers=3, bidirectional=True),
        "lstm": lambda: PF.lstm(*steps(2), num_layers=2),
        "lstm_twice": lambda: [PF.lstm(*steps(2), num_layers=2) for _ in range(2)],
        "lstm_both_ways": lambda: PF.lstm(
            *steps(2, 3, 2), num_layers=3, bidirectional=True, rng=rng()
        ),
        "lstm_without_bias": lambda: PF.lstm(*steps(2, 1), with_bias=False),
        "lstm_initializers": lambda: PF.lstm(
            *steps(2), num_layers=2, w0_init=normal(), w_init=uniform(), b_init=normal(2.0)
        ),
        "gru": lambda: PF.gru(*steps(), num_layers=2),
        "gru_both_ways": lambda: PF.gru(*steps(1, 3, 2), num_layers=3, bidirectional=True),
        "lstm_cell": lambda: PF.lstm_cell(v(2, 3), v(2, 4), v(2, 4), 4),
        "lstm_cell_named": lambda: PF.lstm_cell(
            v(2, 3), v(2, 4), v(2, 4), 4, name="x", w_init=normal()
        ),
        "LSTMCell": lambda: PF.LSTMCell(2, 4, name="cell")(v(2, 3)),
        "spectral_norm": lambda: PF.spectral_norm(v(4, 3, 3)),
        "spectral_norm_dim": lambda: PF.spectral_norm(v(4, 3, 3), dim=1),
        "spectral_norm_of_conv": lambda: PF.convolution(
            image(), 6, (3, 3), apply_w=lambda w: PF.spectral_norm(w)
        ),
        "multi_head_attention": lambda: PF.multi_head_attention(q(), q(), q(), num_heads=3),
        "multi_head_attention_widths": lambda: PF.multi_head_attention(
            q(), v(4, 2, 6), v(4, 2, 9), num_heads=3, k_embed_dim=6, out_dim=10, add_attn_bias=True
        ),
        "multi_head_attention_without_bias": lambda: PF.multi_head_attention(
            q(), q(), q(), num_heads=3, with_bias=False, rng=rng()
        ),
        "multi_head_attention_initializers": lambda: PF.multi_head_attention(
            q(), q(), q(), 3, param_init={"q_weight": normal(), "v_bias": uniform()}
        ),
        "transformer_encode": lambda: PF.transformer_encode(q(), 12, 3, 7, add_attn_bias=True),
        "transformer_decode": lambda: PF.transformer_decode(q(), q(), 12, 3, 7),
        "transformer": lambda: PF.transformer(
            q(), q(), 12, 3, num_encoder_layers=2, num_decoder_layers=2, dim_feedforward=7
        ),
        "deformable": lambda: PF.deformable_convolution(
            image(), 6, (3, 3), v(2, 18, 8, 8), pad=(1, 1)
        ),
    }

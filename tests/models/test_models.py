# SPDX-License-Identifier: Apache-2.0
"""Shapes, numbers of parameters, and errors of nnl.models."""

from math import erf, pi, sqrt

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl import models as M
from nnl.models.stack import exact_gelu


def images(size=224, batch=1, colors=3):
    return nn.Variable((batch, colors, size, size))


def tokens(batch=2, length=8, vocabulary=100):
    drawn = np.random.default_rng(0).integers(0, vocabulary, (batch, length))
    return nn.Variable.from_numpy_array(drawn)


def parameter_count():
    return sum(v.size for v in nn.get_parameters().values())


# DCGAN: PyTorch's tutorial; U-Net: milesial/Pytorch-UNet; test_catalogue.py has those for ImageNet.
COUNTS = {
    "dcgan-generator": (lambda: M.dcgan_generator(nn.Variable((2, 100))), 3_576_704),
    "dcgan-discriminator": (lambda: M.dcgan_discriminator(images(64)), 2_765_568),
    "unet": (lambda: M.unet(images(32)), 31_037_698),
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_count_is_the_published_one(name):
    build, count = COUNTS[name]
    build()
    assert parameter_count() == count


@pytest.mark.long
def test_base_sizes_of_transformers_have_the_published_parameter_counts():
    M.bert(tokens())  # transformers' BertModel of bert-base-uncased
    assert parameter_count() == 109_482_240
    nn.clear_parameters()
    M.gpt2(tokens())  # transformers' GPT2LMHeadModel of gpt2
    assert parameter_count() == 124_439_808


SMALL = {"vocabulary": 100, "width": 16, "layers": 2, "heads": 4, "longest": 12}

OUTPUTS = {
    "lenet": (lambda: M.lenet(images(28, 2, 1)), (2, 10)),
    "mlp": (lambda: M.mlp(nn.Variable((2, 5)), (7, 6), 3), (2, 3)),
    "resnet": (lambda: M.resnet(images(32, 2), 18, 7), (2, 7)),
    "resnext": (lambda: M.resnext(images(32, 2), 50, 8, 4, 7), (2, 7)),
    "se_resnet": (lambda: M.se_resnet(images(32, 2), 18, 7), (2, 7)),
    "mobilenet_v3": (lambda: M.mobilenet_v3(images(32, 2), "small", 7), (2, 7)),
    "efficientnet": (lambda: M.efficientnet(images(32, 2), 0, 7), (2, 7)),
    "dcgan_generator": (lambda: M.dcgan_generator(nn.Variable((2, 9)), 4), (2, 3, 64, 64)),
    "dcgan_discriminator": (lambda: M.dcgan_discriminator(images(64, 2), 4), (2, 1)),
    "unet": (lambda: M.unet(images(16, 2), 3, 4, 2), (2, 3, 16, 16)),
    "lstm": (lambda: M.recurrent_language_model(tokens(6, 2), 100, "lstm", 8, 2, 0.1), (6, 2, 100)),
    "gru": (lambda: M.recurrent_language_model(tokens(6, 2), 100, "gru", 8), (6, 2, 100)),
    "bert": (lambda: M.bert_masked_language_model(tokens(), **SMALL), (2, 8, 100)),
    "gpt2": (lambda: M.gpt2(tokens(), **SMALL), (2, 8, 100)),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_training_step_reaches_every_parameter(name):
    build, shape = OUTPUTS[name]
    y = build()
    assert y.shape == shape
    rng = np.random.default_rng(1)
    for v in _inputs(y):
        v.d = rng.normal(size=v.shape)
    loss = F.mean(F.squared_error(y, F.constant(3.0, y.shape)))
    loss.forward(clear_no_need_grad=True)
    loss.backward(clear_buffer=True)
    for path, v in nn.get_parameters().items():
        assert np.isfinite(v.g).all() and not v.grad.zeroing, path


def _inputs(y):
    """The Variables of float images or noise that a network starts from."""
    parameters = {id(v.data) for v in nn.get_parameters(grad_only=False).values()}
    found = {}

    def look(f):
        for v in f.inputs:
            if v.parent is None and id(v.data) not in parameters and v.data.zeroing:
                found[id(v.data)] = v

    y.visit(look)
    return list(found.values())


def test_models_in_two_scopes_share_nothing():
    for scope in ("teacher", "student"):
        with nn.parameter_scope(scope):
            M.mlp(nn.Variable((2, 5)))
    paths = nn.get_parameters()
    assert {p.split("/")[0] for p in paths} == {"teacher", "student"}
    assert len(paths) == 12


def test_a_second_call_uses_the_same_parameters():
    M.resnet(images(32), 18, test=True)
    before = nn.get_parameters(grad_only=False)
    M.resnet(images(32), 18, test=False)
    after = nn.get_parameters(grad_only=False)
    assert [id(v.data) for v in before.values()] == [id(v.data) for v in after.values()]


def test_test_mode_neither_drops_nor_updates_statistics():
    x = images(32, 2)
    x.d = np.random.default_rng(0).normal(size=x.shape)
    y = M.efficientnet(x, 0, 5, test=True, dropout=0.5, drop_path=0.5)
    before = {k: v.d.copy() for k, v in nn.get_parameters(grad_only=False).items()}
    y.forward()
    first = y.d.copy()
    y.forward()
    np.testing.assert_array_equal(y.d, first)
    for path, v in nn.get_parameters(grad_only=False).items():
        np.testing.assert_array_equal(v.d, before[path])


def test_padding_does_not_change_the_sequence_before_it():
    words = tokens(1, 8)
    keep = nn.Variable.from_numpy_array(np.array([[1, 1, 1, 1, 1, 0, 0, 0]]))
    y, _ = M.bert(words, None, keep, test=True, **SMALL)
    y.forward()
    first = y.d.copy()
    words.d[0, 5:] = (words.d[0, 5:] + 1) % 100
    y.forward()
    np.testing.assert_array_equal(y.d[:, :5], first[:, :5])


def test_the_exact_gelu_keeps_its_input_and_its_result_alone():
    x = nn.Variable((3, 4), need_grad=True)
    x.d, x.g = np.random.default_rng(0).normal(size=x.shape), 0
    y = exact_gelu(x)
    y.forward(clear_no_need_grad=True)
    inner = y.parent.inputs[0].parent.inputs[1]  # 1 + erf
    with pytest.raises(ValueError, match="was read after it had been cleared"):
        print(inner.d)
    y.backward(clear_buffer=True)
    assert inner.recompute and not y.recompute
    phi = np.array([0.5 * (1 + erf(v / sqrt(2))) for v in x.d.ravel()]).reshape(x.shape)
    want = phi + x.d * np.exp(-(x.d**2) / 2) / sqrt(2 * pi)
    np.testing.assert_allclose(x.g, want, rtol=1e-5, atol=1e-6)


def test_gpt2_does_not_look_ahead():
    words = tokens(1, 8)
    y = M.gpt2(words, test=True, **SMALL)
    y.forward()
    first = y.d.copy()
    words.d[0, 5:] = (words.d[0, 5:] + 1) % 100
    y.forward()
    np.testing.assert_array_equal(y.d[:, :5], first[:, :5])
    assert np.abs(y.d[:, 5:] - first[:, 5:]).max() > 1e-4


ERRORS = {
    r"resnet: depth is 20, wanted one of \[18, 34, 50, 101, 152\]": lambda: M.resnet(images(), 20),
    r"se_resnet: depth is 20, wanted": lambda: M.se_resnet(images(), 20),
    r"resnext: depth is 18, wanted one of 50, 101, 152": lambda: M.resnext(images(), 18),
    r"mobilenet_v3: size is 'tiny', wanted one of \['large', 'small'\]": lambda: M.mobilenet_v3(
        images(), "tiny"
    ),
    r"efficientnet: variant is 8, wanted 0 to 7": lambda: M.efficientnet(images(), 8),
    r"unet: x has the shape \(1, 3, 40, 40\), wanted height and width in multiples of 16": (
        lambda: M.unet(images(40))
    ),
    r"recurrent_language_model: cell is 'elman', wanted 'lstm' or 'gru'": (
        lambda: M.recurrent_language_model(tokens(), 100, "elman")
    ),
    r"encoder: tokens has the shape \(2, 13\), wanted \(B, T\) with T at most 12": (
        lambda: M.bert(tokens(2, 13), **SMALL)
    ),
    r"encoder: tokens has the shape \(2, 13\)": (
        lambda: M.bert_masked_language_model(tokens(2, 13), **SMALL)
    ),
    r"Stack: width 16 is not a multiple of heads 3": (
        lambda: M.gpt2(tokens(), **{**SMALL, "heads": 3})
    ),
}


@pytest.mark.parametrize("text", ERRORS)
def test_wrong_sizes_are_refused_before_a_parameter_is_made(text):
    with pytest.raises(ValueError, match=text):
        ERRORS[text]()
    assert not nn.get_parameters()

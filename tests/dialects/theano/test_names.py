# SPDX-License-Identifier: Apache-2.0
"""Names of theano.tensor: values and gradients beside PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as TF

import nnl.dialects.theano as theano
import nnl.dialects.theano.tensor as T

RNG = np.random.default_rng(0)
A = (RNG.uniform(0.2, 0.9, (2, 3)) * RNG.choice([-1, 1], (2, 3))).astype(np.float32)
B = RNG.uniform(0.2, 0.9, (2, 3)).astype(np.float32)
C = RNG.uniform(0.2, 0.9, (3, 4)).astype(np.float32)
V, W = RNG.normal(size=3).astype(np.float32), RNG.normal(size=4).astype(np.float32)
U = B[0]
X3 = RNG.normal(size=(2, 3, 4)).astype(np.float32)
Y3 = RNG.normal(size=(2, 4, 5)).astype(np.float32)
S = (A[:, :2] @ A[:, :2].T + 2 * np.eye(2)).astype(np.float32)
INTS = np.array([[3, -4, 5], [0, 7, -2]], np.int64)
J = np.array([[2, 3, 2], [4, 2, 3]], np.int64)
K = np.array([2, 0, 1], np.int64)
M = np.array([[True, False, True], [False, True, True]])
N = ~M & np.array([True, False, True])
P = TF.softmax(torch.from_numpy(X3[0]), 1).numpy()
IMAGE = RNG.normal(size=(2, 3, 7, 8)).astype(np.float32)
FILTERS = RNG.normal(size=(4, 3, 3, 2)).astype(np.float32)
VOLUME = RNG.normal(size=(1, 2, 5, 5, 6)).astype(np.float32)
FILTERS3 = RNG.normal(size=(2, 2, 3, 2, 2)).astype(np.float32)


def t(x):
    return torch.as_tensor(x)


def flipped(w):
    return torch.flip(w, tuple(range(2, w.dim())))


# name, arrays, PyTorch's function, Theano's if it takes more than the arrays
EVERY_ELEMENT = """
exp2 expm1 exp sin cos tan tanh sinh cosh arcsin arccos arctan arcsinh arctanh erf erfc deg2rad
rad2deg sigmoid ceil floor trunc neg abs_=abs abs sgn=sign sign sqr=square square
""".split()
OF_POSITIVE = "log log2 log10 log1p sqrt inv=reciprocal".split()
OF_TWO = """
add sub mul true_div=div maximum minimum arctan2=atan2 eq neq=ne lt le gt ge mod=remainder
divide=div true_divide=div subtract=sub
""".split()
OF_WHOLE = "add sub mul maximum minimum eq neq=ne lt ge true_div=div".split()
OF_TRUTH = (
    "and_=logical_and or_=logical_or xor=logical_xor bitwise_and bitwise_or bitwise_xor".split()
)


def rows():
    for names, arrays in (
        (EVERY_ELEMENT, [A]), (OF_POSITIVE, [B]), (["arccosh"], [B + 1]), (OF_TWO, [A, B]),
        (OF_WHOLE, [INTS, J]), (OF_TRUTH, [M, N]),
        (["mod=remainder", "int_div=floor_divide"], [INTS, J]),
    ):  # fmt: skip
        for name in names:
            ours, _, theirs = name.partition("=")
            yield ours, arrays, getattr(torch, theirs or ours), None
    yield from TABLE


def like(f):
    return lambda x, **more: t(f(x.detach().numpy(), **more))


TABLE = [
    # elements
    ("int_div", [A, B], lambda a, b: (a / b).floor().detach(), None),
    ("floor_div", [A, B], lambda a, b: (a / b).floor().detach(), lambda a, b: a // b),
    ("pow", [B, A], torch.pow, None),
    ("power", [B, V], torch.pow, None),
    ("pow", [A], lambda x: x**2, lambda x: x**2),
    ("pow", [A], lambda x: x**-3.0, lambda x: x**-3.0),
    ("round", [A * 5], torch.round, None),
    ("round", [np.float32([-1.5, 0.5, 2.5])], lambda x: t([-2.0, 1.0, 3.0]),
     lambda x: T.round(x, "half_away_from_zero")),
    ("iround", [A * 5], lambda x: torch.round(x).long(), None),
    ("isnan", [np.float32([1, np.nan])], torch.isnan, None),
    ("isinf", [np.float32([1, -np.inf])], torch.isinf, None),
    ("invert", [M], torch.logical_not, lambda x: ~x),
    ("invert", [INTS], torch.bitwise_not, None),
    ("cast", [A * 5], lambda x: x.int(), lambda x: T.cast(x, "int32")),
    ("cast", [INTS], lambda x: x.float(), lambda x: x.astype("float32")),
    ("switch", [M, A, B], torch.where, None),
    ("where", [A, B], lambda a, b: torch.where(a > b, a, b), lambda a, b: T.where(a > b, a, b)),
    ("clip", [A], lambda x: x.clip(-0.5, 0.5), lambda x: T.clip(x, -0.5, 0.5)),
    ("clip", [A, B], lambda x, y: torch.minimum(x, y), lambda x, y: x.clip(-9, y)),
    ("isclose", [A, A + 1e-7], torch.isclose, None),
    ("allclose", [A, B], lambda a, b: t(torch.allclose(a, b)), None),
    ("add", [A, V], lambda a, b: a + b + 3, lambda a, b: 3 + a + b),
    ("sub", [A, V], lambda a, b: 1 - (b - a), lambda a, b: 1 - (b - a)),
    ("mul", [A, INTS], lambda a, b: a * b * 2, lambda a, b: 2 * a * b),
    ("true_div", [B, V], lambda a, b: 2 / a / b, lambda a, b: 2 / a / b),
    ("mod", [A], lambda x: x % 0.3, lambda x: x % 0.3),
    # reductions
    ("sum", [X3], torch.sum, None),
    ("sum", [X3], lambda x: x.sum((0, 2)), lambda x: x.sum(axis=(0, 2))),
    ("sum", [X3], lambda x: x.sum(1, keepdim=True), lambda x: T.sum(x, 1, keepdims=True)),
    ("sum", [INTS], torch.sum, None),
    ("sum", [M], torch.sum, None),
    ("prod", [B], lambda x: x.prod(1), lambda x: T.prod(x, axis=1)),
    ("mean", [X3], lambda x: x.mean(-1), lambda x: T.mean(x, axis=-1)),
    ("mean", [INTS], lambda x: x.float().mean(), None),
    ("var", [X3], lambda x: x.var(1, correction=0), lambda x: T.var(x, axis=1)),
    ("std", [X3], lambda x: x.std(0, correction=1), lambda x: T.std(x, axis=0, ddof=1)),
    ("max", [X3], lambda x: x.amax(1), lambda x: T.max(x, axis=1)),
    ("max", [X3], lambda x: x.amax((0, 1)), lambda x: x.max((0, 1))),
    ("min", [X3], lambda x: x.amin(), None),
    ("argmax", [X3], lambda x: x.argmax(1), lambda x: T.argmax(x, axis=1)),
    ("argmax", [X3], torch.argmax, None),
    ("argmin", [X3], lambda x: x.argmin(2), lambda x: x.argmin(2)),
    ("max_and_argmax", [X3], lambda x: x.max(2)[0], lambda x: T.max_and_argmax(x, axis=2)[0]),
    ("all", [M], lambda x: x.all(1), lambda x: T.all(x, axis=1)),
    ("any", [M], lambda x: x.any(0), lambda x: T.any(x, axis=0)),
    ("ptp", [A], lambda x: x.amax(1) - x.amin(1), lambda x: T.ptp(x, 1)),
    ("logsumexp", [X3 * 50], lambda x: x.logsumexp(1), lambda x: T.logsumexp(x, axis=1)),
    ("cumsum", [X3], lambda x: x.cumsum(1), lambda x: T.cumsum(x, axis=1)),
    ("cumsum", [A], lambda x: x.reshape(-1).cumsum(0), None),
    ("cumprod", [B], lambda x: x.cumprod(1), lambda x: T.cumprod(x, axis=1)),
    # products
    ("dot", [A, C], torch.matmul, None),
    ("dot", [V, C], torch.matmul, None),
    ("dot", [A, V], torch.matmul, None),
    ("dot", [V, V], torch.dot, None),
    ("dot", [X3, W], torch.matmul, None),
    ("dot", [A, X3], lambda a, b: torch.einsum("ab,cbd->acd", a, b), None),
    ("matmul", [A, C], torch.matmul, lambda a, b: a @ b),
    ("tensordot", [X3, C], lambda a, b: torch.tensordot(a, b, ([1, 2], [0, 1])),
     lambda a, b: T.tensordot(a, b, [[1, 2], [0, 1]])),
    ("tensordot", [X3, Y3[0]], lambda a, b: torch.tensordot(a, b, 1),
     lambda a, b: T.tensordot(a, b, 1)),
    ("batched_dot", [X3, Y3], torch.bmm, None),
    ("batched_tensordot", [X3, Y3], torch.bmm, lambda a, b: T.batched_tensordot(a, b, [[2], [1]])),
    ("outer", [V, W], torch.outer, None),
    ("nlinalg.det", [S], torch.det, None),
    ("nlinalg.matrix_inverse", [S], torch.inverse, None),
    ("nlinalg.trace", [S], torch.trace, None),
    ("nlinalg.matrix_dot", [A, C, X3[0].T], lambda a, b, c: a @ b @ c, None),
    ("nlinalg.matrix_power", [S], lambda x: x @ x @ x, lambda x: T.nlinalg.matrix_power(x, 3)),
    ("slinalg.cholesky", [S], torch.linalg.cholesky, None),
    ("slinalg.solve", [S, A], torch.linalg.solve, None),
    ("slinalg.kron", [A, S], torch.kron, None),
    ("nlinalg.norm", [A], torch.norm, lambda x: x.norm(2)),
    ("nlinalg.norm", [A], lambda x: x.abs().sum(1), lambda x: T.nlinalg.norm(x, 1, axis=1)),
    # shapes
    ("reshape", [A], lambda x: x.reshape(3, 2), lambda x: x.reshape((3, 2))),
    ("reshape", [X3], lambda x: x.reshape(2, -1), lambda x: T.reshape(x, (x.shape[0], -1))),
    ("flatten", [X3], torch.flatten, None),
    ("flatten", [X3], lambda x: x.flatten(1), lambda x: x.flatten(2)),
    ("dimshuffle", [A], lambda x: x.T[None, :, None], lambda x: x.dimshuffle("x", 1, "x", 0)),
    ("transpose", [X3], lambda x: x.permute(2, 1, 0), None),
    ("transpose", [X3], lambda x: x.permute(1, 0, 2), lambda x: x.transpose(1, 0, 2)),
    ("swapaxes", [X3], lambda x: x.swapaxes(0, 2), lambda x: T.swapaxes(x, 0, 2)),
    ("squeeze", [A[:, None]], lambda x: x.squeeze(1), lambda x: T.addbroadcast(x, 1).squeeze()),
    ("shape_padleft", [A], lambda x: x[None], None),
    ("shape_padright", [A], lambda x: x[..., None], None),
    ("shape_padaxis", [A], lambda x: x[:, None], lambda x: T.shape_padaxis(x, 1)),
    ("expand_dims", [A], lambda x: x[:, None], lambda x: T.expand_dims(x, 1)),
    ("addbroadcast", [A[:, :1]], lambda x: x, lambda x: T.addbroadcast(x, 1)),
    ("unbroadcast", [A], lambda x: x, lambda x: T.unbroadcast(x, 0)),
    ("patternbroadcast", [A[:1]], lambda x: x, lambda x: T.patternbroadcast(x, (True, False))),
    ("specify_shape", [A], lambda x: x, lambda x: T.specify_shape(x, (2, 3))),
    ("concatenate", [A, B], lambda a, b: torch.cat([a, b], 1),
     lambda a, b: T.concatenate([a, b], 1)),
    ("join", [A, B], lambda a, b: torch.cat([a, b]), lambda a, b: T.join(0, a, b)),
    ("stack", [A, B], lambda a, b: torch.stack([a, b], 1), lambda a, b: T.stack([a, b], axis=1)),
    ("stacklists", [V, U], lambda a, b: torch.stack([torch.stack([a, b]), torch.stack([b, a])]),
     lambda a, b: T.stacklists([[a, b], [b, a]])),
    ("split", [C], lambda x: x.split([1, 3], 1)[1], lambda x: T.split(x, [1, 3], 2, axis=1)[1]),
    ("repeat", [A], lambda x: x.repeat_interleave(2, 1), lambda x: T.repeat(x, 2, axis=1)),
    ("repeat", [A], lambda x: x.reshape(-1).repeat_interleave(3), lambda x: x.repeat(3)),
    ("tile", [A], lambda x: x.tile(2, 3), lambda x: T.tile(x, (2, 3))),
    ("roll", [C], lambda x: x.roll(1, 1), lambda x: T.roll(x, 1, axis=1)),
    ("roll", [C], lambda x: x.roll(-2), lambda x: T.roll(x, -2)),
    ("pad", [A], lambda x: TF.pad(x, (1, 2)), lambda x: T.pad(x, [(0, 0), (1, 2)])),
    ("arange", [A], lambda x: torch.arange(1, 3) * 2, lambda x: T.arange(1, x.shape[1]) * 2),
    ("alloc", [V], lambda x: x.expand(2, 3), lambda x: T.alloc(x, 2, x.shape[0])),
    ("zeros", [A], lambda x: torch.zeros(2, 4), lambda x: T.zeros((x.shape[0], 4))),
    ("ones", [A], torch.ones_like, lambda x: T.ones(x.shape)),
    ("zeros_like", [A], torch.zeros_like, None),
    ("ones_like", [A], lambda x: torch.ones_like(x) + x, lambda x: x + T.ones_like(x)),
    ("fill", [A, V], lambda a, b: b.expand(2, 3), None),
    ("eye", [A], lambda x: torch.eye(2, 4), lambda x: T.eye(x.shape[0], 4)),
    ("identity_like", [S], lambda x: torch.eye(2), None),
    ("tril", [C], torch.tril, None),
    ("triu", [C], lambda x: x.triu(1), lambda x: T.triu(x, 1)),
    ("tri", [C], lambda x: torch.ones(3, 4).tril(), lambda x: T.tri(x.shape[0], 4)),
    ("mgrid", [V], lambda x: torch.arange(3)[:, None] * x, lambda x: T.mgrid[0:3, 0:3][0] * x),
    ("ogrid", [V], lambda x: torch.arange(3)[:, None] * x, lambda x: T.ogrid[0:3, 0:3][0] * x),
    ("diag", [V], torch.diag, None),
    ("diag", [C], torch.diag, None),
    ("diagonal", [C], lambda x: x.diagonal(1), lambda x: T.diagonal(x, 1)),
    ("extract_diag", [C], torch.diagonal, None),
    ("trace", [S], torch.trace, None),
    ("fill_diagonal", [C], lambda x: x.clone().fill_diagonal_(2), lambda x: T.fill_diagonal(x, 2)),
    ("shape", [X3], lambda x: t([2, 3, 4]), None),
    ("size", [X3], lambda x: t(24), lambda x: x.size),
    ("as_tensor_variable", [V], lambda x: torch.stack([x[0], x[2]]),
     lambda x: T.as_tensor_variable([x[0], x[2]])),
    ("constant", [A], lambda x: x + t(B), lambda x: x + T.constant(B)),
    # chosen elements
    ("[]", [X3], lambda x: x[1, :, 1:3], lambda x: x[1, :, 1:3]),
    ("[]", [X3], lambda x: x[:, [2, 0], -1], lambda x: x[:, [2, 0], -1]),
    ("[]", [X3], lambda x: x.flip(2)[..., None], lambda x: x[:, :, ::-1, None]),
    ("[]", [C, K], lambda x, k: x[k], lambda x, k: x[k]),
    ("[]", [C, K], lambda x, k: x[torch.arange(3), k], lambda x, k: x[T.arange(3), k]),
    ("[]", [X3, K], lambda x, k: x[:, k, k], lambda x, k: x[:, k, k]),
    ("[]", [X3, K[:2]], lambda x, k: x[[0, 1], :, k - 3], lambda x, k: x[[0, 1], :, k - 3]),
    ("[]", [C, K], lambda x, k: x[k[0], 1:], lambda x, k: x[k[0], k[2]:]),
    ("[]", [C, K], lambda x, k: x[1:3, 0::2], lambda x, k: x[k[2]:k[0] + 1, ::2]),
    ("[]", [A, M], lambda x, m: x[m], lambda x, m: x[m.nonzero()]),
    ("[]", [A, M], lambda x, m: x[m], lambda x, m: x[m]),
    ("nonzero", [M], lambda x: x.nonzero().T[1], lambda x: T.nonzero(x)[1]),
    ("flatnonzero", [M], lambda x: x.reshape(-1).nonzero()[:, 0], None),
    ("nonzero_values", [A * M], lambda x: x[x != 0], None),
    ("take", [C, K], lambda x, k: x[:, k], lambda x, k: T.take(x, k, axis=1)),
    ("take", [C, K], lambda x, k: x.reshape(-1)[k], T.take),
    ("choose", [K % 2, A], lambda k, x: x[k, torch.arange(3)], T.choose),
    ("compress", [np.array([True, False, True]), C], lambda m, x: x[m],
     lambda m, x: T.compress(m, x, 0)),
    ("set_subtensor", [C, A[:, :2]], lambda x, y: torch.cat([torch.cat([y, x[:2, 2:]], 1), x[2:]]),
     lambda x, y: T.set_subtensor(x[:2, :2], y)),
    ("set_subtensor", [C, K], lambda x, k: torch.stack([x[0] * 0, x[1], x[2] * 0]),
     lambda x, k: T.set_subtensor(x[k[:2]], 0)),
    ("inc_subtensor", [C, W], lambda x, y: x + t([[1.0], [2], [0]]) * y,
     lambda x, y: T.inc_subtensor(x[[0, 1, 1]], y)),
    ("inc_subtensor", [C, K, V], lambda x, k, y: x.index_put((torch.arange(3), k), y, True),
     lambda x, k, y: T.inc_subtensor(x[T.arange(3), k], y)),
    ("sort", [X3], lambda x: x.sort(1)[0], lambda x: T.sort(x, axis=1)),
    ("argsort", [X3], torch.argsort, None),
    ("diff", [C], lambda x: x.diff(n=2), lambda x: T.diff(x, n=2)),
    ("extra_ops.bincount", [K], torch.bincount, None),
    ("extra_ops.bincount", [K, V], lambda k, v: v[[1, 2, 0]], None),
    ("extra_ops.to_one_hot", [K], lambda k: TF.one_hot(k, 4).float(),
     lambda k: T.extra_ops.to_one_hot(k, 4)),
    # nnet
    ("nnet.sigmoid", [A * 3], torch.sigmoid, None),
    ("nnet.ultra_fast_sigmoid", [A * 3], torch.sigmoid, None),
    ("nnet.hard_sigmoid", [A * 4], lambda x: (x * 0.2 + 0.5).clip(0, 1), None),
    ("nnet.softplus", [A * 3], TF.softplus, None),
    ("nnet.softsign", [A], TF.softsign, None),
    ("nnet.relu", [A], torch.relu, None),
    ("nnet.relu", [A], lambda x: TF.leaky_relu(x, 0.1), lambda x: T.nnet.relu(x, 0.1)),
    ("nnet.elu", [A], lambda x: TF.elu(x, 0.7), lambda x: T.nnet.elu(x, 0.7)),
    ("nnet.selu", [A], torch.selu, None),
    ("nnet.softmax", [A], lambda x: x.softmax(1), None),
    ("nnet.softmax", [V], lambda x: x.softmax(0)[None], None),
    ("nnet.logsoftmax", [A * 30], lambda x: x.log_softmax(1), None),
    ("nnet.categorical_crossentropy", [P, K],
     lambda p, k: TF.nll_loss(p.log(), k, reduction="none"), None),
    ("nnet.categorical_crossentropy", [P, C], lambda p, c: -(c * p.log()).sum(1), None),
    ("nnet.binary_crossentropy", [B, np.abs(A)],
     lambda p, c: TF.binary_cross_entropy(p, c, reduction="none"), None),
    ("nnet.sigmoid_binary_crossentropy", [A * 30, B],
     lambda x, c: TF.binary_cross_entropy_with_logits(x, c, reduction="none"), None),
    ("nnet.crossentropy_softmax_1hot", [C, K],
     lambda x, k: TF.cross_entropy(x, k, reduction="none"),
     lambda x, k: T.nnet.crossentropy_softmax_1hot(x, k)[0]),
    ("nnet.crossentropy_categorical_1hot", [P, K],
     lambda p, k: TF.nll_loss(p.log(), k, reduction="none"), None),
    ("nnet.confusion_matrix", [K, K[::-1].copy()],
     lambda a, b: t([[1, 0, 0], [0, 0, 1], [0, 1, 0]]),
     lambda a, b: T.nnet.confusion_matrix(a, b)[0]),
    ("nnet.conv2d", [IMAGE, FILTERS], lambda x, w: TF.conv2d(x, flipped(w)), None),
    ("nnet.conv2d", [IMAGE, FILTERS], lambda x, w: TF.conv2d(x, w, padding=(1, 1), stride=(2, 1)),
     lambda x, w: T.nnet.conv2d(x, w, border_mode="half", subsample=(2, 1), filter_flip=False)),
    ("nnet.conv2d", [IMAGE, FILTERS], lambda x, w: TF.conv2d(x, flipped(w), padding=(2, 1)),
     lambda x, w: T.nnet.conv2d(x, w, border_mode="full")),
    ("nnet.conv2d", [IMAGE, FILTERS], lambda x, w: TF.conv2d(x, flipped(w), padding=3, dilation=2),
     lambda x, w: T.nnet.conv2d(x, w, border_mode=(3, 3), filter_dilation=(2, 2))),
    ("nnet.conv.conv2d", [IMAGE, FILTERS], lambda x, w: TF.conv2d(x, flipped(w)), None),
    ("nnet.conv3d", [VOLUME, FILTERS3], lambda x, w: TF.conv3d(x, flipped(w)), None),
    ("nnet.abstract_conv.conv2d_grad_wrt_inputs", [IMAGE[:, :, :3, :4], FILTERS[:3]],
     lambda x, w: TF.conv_transpose2d(x, flipped(w), stride=2, padding=1, output_padding=(0, 1)),
     lambda x, w: T.nnet.abstract_conv.conv2d_grad_wrt_inputs(
         x, w, (2, 3, 5, 7), border_mode=(1, 1), subsample=(2, 2))),
    ("nnet.conv2d_transpose", [IMAGE, FILTERS[:3]], lambda x, w: TF.conv_transpose2d(x, flipped(w)),
     lambda x, w: T.nnet.conv2d_transpose(x, w, (2, 3, 9, 9))),
    ("nnet.abstract_conv.bilinear_upsampling", [IMAGE[:1, :1, :2, :2]],
     lambda x: t([[[[1, 0], [0.5, 0.5], [0, 1], [0, 1]]]]) @ x
     @ t([[1, 0.5, 0, 0], [0, 0.5, 1, 1]]),
     lambda x: T.nnet.abstract_conv.bilinear_upsampling(x, 2)),
    ("nnet.batch_normalization", [A, V, U, V * 2, U],
     lambda x, g, b, m, s: (x - m) * g / s + b, None),
    ("nnet.bn.batch_normalization_train", [IMAGE, V, U],
     lambda x, g, b: TF.batch_norm(x, None, None, g, b, True, eps=1e-4),
     lambda x, g, b: T.nnet.bn.batch_normalization_train(x, g, b, "spatial")[0]),
    ("nnet.bn.batch_normalization_test", [IMAGE, V, U, V * 2, U * 2],
     lambda x, g, b, m, v: ((x.movedim(1, 3) - m) * g / (v + 1e-4).sqrt() + b).movedim(3, 1),
     lambda x, g, b, m, v: T.nnet.bn.batch_normalization_test(x, g, b, m, v, "spatial")),
    ("signal.pool.pool_2d", [IMAGE], lambda x: TF.max_pool2d(x, 2),
     lambda x: T.signal.pool.pool_2d(x, (2, 2), ignore_border=True)),
    ("signal.pool.pool_2d", [IMAGE], lambda x: TF.max_pool2d(x, 2, ceil_mode=True),
     lambda x: T.signal.pool.pool_2d(x, (2, 2), ignore_border=False)),
    ("signal.pool.pool_2d", [IMAGE], lambda x: TF.avg_pool2d(x, 3, 2, 1),
     lambda x: T.signal.pool.pool_2d(x, ws=(3, 3), ignore_border=True, stride=(2, 2), pad=(1, 1),
                                     mode="average_inc_pad")),
    ("signal.pool.pool_2d", [IMAGE], lambda x: TF.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
     lambda x: T.signal.pool.pool_2d(x, ws=(3, 3), ignore_border=True, stride=(2, 2), pad=(1, 1),
                                     mode="average_exc_pad")),
    ("signal.downsample.max_pool_2d", [IMAGE], lambda x: TF.max_pool2d(x, 2),
     lambda x: T.signal.downsample.max_pool_2d(x, (2, 2), ignore_border=True)),
    ("signal.pool.pool_3d", [VOLUME], lambda x: TF.max_pool3d(x, 2),
     lambda x: T.signal.pool.pool_3d(x, (2, 2, 2), ignore_border=True)),
    ("nnet.neighbours.images2neibs", [IMAGE[:, :, :6]],
     lambda x: x.unfold(2, 3, 3).unfold(3, 2, 2).reshape(-1, 6),
     lambda x: T.nnet.neighbours.images2neibs(x, (3, 2))),
    # gradients
    ("grad", [A], lambda x: 3 * x**2, lambda x: theano.grad(T.sum(x**3), x)),
    ("jacobian", [V], lambda x: torch.diag(2 * x), lambda x: theano.gradient.jacobian(x**2, x)),
    ("hessian", [V], lambda x: torch.diag(6 * x),
     lambda x: theano.gradient.hessian(T.sum(x**3), x)),
    ("Lop", [A, C, X3[0, :2]], lambda a, c, g: g @ c.T, lambda a, c, g: T.Lop(T.dot(a, c), a, g)),
    ("Rop", [A, C, B], lambda a, c, v: v @ c, lambda a, c, v: T.Rop(T.dot(a, c), a, v)),
    ("gradient.disconnected_grad", [A], lambda x: x.detach() * x,
     lambda x: theano.gradient.disconnected_grad(x) * x),
    ("gradient.grad_scale", [A], lambda x: x * 3 - (2 * x).detach(),
     lambda x: theano.gradient.grad_scale(x, 3)),
    ("clone", [A, B], lambda a, b: (b * 2) ** 2, lambda a, b: theano.clone((a * 2) ** 2, {a: b})),
    ("ifelse", [A, B], lambda a, b: a, lambda a, b: theano.ifelse.ifelse(T.lt(a[1, 1], 9), a, b)),
    ("scan", [X3], lambda x: torch.cumsum(x, 0),
     lambda x: theano.scan(lambda r, s: r + s, x, T.zeros_like(x[0]))[0]),
    ("map", [A], lambda x: x.sum(1), lambda x: theano.map(lambda r: r.sum(), x)[0]),
    ("foldl", [V], lambda x: x.prod(),
     lambda x: theano.foldl(lambda r, s: r * s, x, T.ones(()))[0]),
    ("foldr", [V], lambda x: x[2] * 0.5**0 + x[1] / 2 * 0 + x[0] * 0 + (x.flip(0).sum() - x[2]),
     lambda x: theano.foldr(lambda r, s: r + s, x, T.zeros(()))[0]),
    ("reduce", [V], lambda x: x.sum(),
     lambda x: theano.reduce(lambda r, s: r + s, x, T.zeros(()))[0]),
]  # fmt: skip
ROWS = list(rows())


def found(name):
    at = T
    for part in name.split("."):
        at = getattr(at, part)
    return at


@pytest.mark.parametrize("row", ROWS, ids=[f"{i}-{r[0]}" for i, r in enumerate(ROWS)])
def test_value_and_gradients(row):
    name, arrays, oracle, ours = row
    xs = [T.TensorType(a.dtype, (False,) * a.ndim)() for a in arrays]
    y = (ours or found(name))(*xs)
    floats = [x for x in xs if x.dtype == "float32"]
    start = T.TensorType("float32", (False,) * y.ndim)()
    known = {y: start} if y.dtype == "float32" else {}
    grads = []
    if known and floats:
        grads = T.grad(None, floats, known_grads=known, disconnected_inputs="ignore")
    given = [torch.tensor(a, requires_grad=a.dtype == np.float32) for a in arrays]
    want = oracle(*given)
    g = np.random.default_rng(1).normal(size=want.shape).astype(np.float32)
    inputs = [*xs, start] if known else xs
    f = theano.function(inputs, [y, *grads], on_unused_input="ignore")
    got, *got_grads = f(*arrays, g) if known else f(*arrays)
    assert got.dtype == y.dtype and got.ndim == y.ndim
    assert got.dtype.kind == want.detach().numpy().dtype.kind
    np.testing.assert_allclose(got, want.detach().numpy(), rtol=2e-5, atol=1e-5)
    if want.requires_grad and grads:
        (want * t(g)).sum().backward()
    for x, v in zip([v for v in given if v.requires_grad], got_grads, strict=bool(grads)):
        wanted = np.zeros(v.shape) if x.grad is None else x.grad.numpy()
        np.testing.assert_allclose(v, wanted, rtol=5e-5, atol=2e-5)


def test_how_many_names_there_are():
    assert len({r[0] for r in ROWS} - {"[]"}) >= 120

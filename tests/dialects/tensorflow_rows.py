# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  the rows are a table
"""Expressions of TensorFlow 1, as two modules `tf` evaluate them: the dialect, and TensorFlow.

Run as a module by the Python of NNL_TENSORFLOW_PYTHON it writes TensorFlow's numbers to the file that is
named, a line a row: projections of the value, and of the gradient of the sum of its squares with respect to each array
that the expression names.
"""

from __future__ import annotations

import re
import sys

import numpy as np

from tests.dialects.tensorflow_scripts import SCRIPTS

_rng = np.random.default_rng(38)
ARRAYS = {
    "a": _rng.normal(size=(2, 3)),
    "b": _rng.normal(size=(2, 3)),
    "c": _rng.normal(size=(2, 3, 4)),
    "d": _rng.normal(size=(3,)),
    "m": _rng.normal(size=(3, 3)),
    "p": _rng.uniform(0.3, 2, (2, 3)),
    "q": _rng.uniform(0.3, 2, (2, 3)),
    "r": _rng.uniform(-0.9, 0.9, (2, 3)),
    "h": 1 + _rng.uniform(0.1, 2, (2, 3)),
    "x": _rng.normal(size=(2, 6, 6, 4)),
    "w": _rng.normal(size=(3, 3, 4, 5)) / 3,
    "y": _rng.normal(size=(2, 3, 3, 5)),
    "z": _rng.normal(size=(2, 5, 4)),
    "v": _rng.normal(size=(1, 4, 4, 4, 2)),
    "u": _rng.uniform(0, 1, (2, 3)),
}
ARRAYS = {k: v.astype(np.float32) for k, v in ARRAYS.items()}
ARRAYS |= {
    "i": np.array([2, 0], np.int32),
    "j": np.array([[7, -7, 5], [2, 3, -3]], np.int32),
    "k": np.array([[2, 3, 4], [2, 3, 4]], np.int32),
    "t": np.array([[True, False, True], [False, False, True]]),
    "f": np.array([[True, True, False], [False, True, True]]),
    "l": np.array([[0, 0, 1], [0, 1, 0]], np.float32),
    "n": np.array([3, 5], np.int32),
}
NO_GRADIENT = "l"

# One expression a line; what is before "#" is the name that it tests.
ROWS = """
abs(a)|acos(r)|acosh(h)|asin(r)|asinh(a)|atan(a)|atanh(r)|ceil(a)|cos(a)|cosh(a)|erf(a)|erfc(a)
exp(a)|expm1(a)|floor(a)|is_finite(a)|is_inf(a)|is_nan(a)|log(p)|log1p(p)|logical_not(t)
negative(a)|reciprocal(p)|rint(a)|round(a)|rsqrt(p)|sign(a)|sigmoid(a)|sin(a)|sinh(a)|sqrt(p)
square(a)|tan(r)|tanh(a)|nn.elu(a)|nn.relu(a)|nn.relu6(a * 5.0)|nn.selu(a)|nn.softplus(a)
nn.softsign(a)|nn.l2_loss(a)|stop_gradient(a) * a|check_numerics(a, 'wrong')|identity(a)
zeros_like(a)|ones_like(a) * a|log_sigmoid(a)|add_n([a, b, a])
add(a, b)|subtract(a, d)|multiply(a, d)|maximum(a, b)|minimum(a, b)|mod(j, k)|floormod(a, p)
pow(p, a)|atan2(a, b)|squared_difference(a, d)|div_no_nan(a, p)|truncatemod(j, k)|floordiv(j, k)
floor_div(j, k)|scalar_mul(2.0, a)|equal(j, k)|not_equal(j, k)|less(a, b)|less_equal(a, b)
greater(a, b)|greater_equal(a, b)|logical_and(t, f)|logical_or(t, f)|divide(a, p)|div(j, k)
div(a, p)|truediv(a, p)|truediv(j, k)|1.0 / p|a ** 2|2.0 - a|-a|a % p|j // k|~t|t & f|t | f
abs(-a)|a > 0.5|3.0 * a + 1|cast(j, tf.float32)|cast(a, tf.int32)|to_float(j)|to_int32(a * 3.0)
to_int64(a)|to_double(a)|cast(t, tf.float32)
reduce_sum(c)|reduce_sum(c, 1)|reduce_sum(c, [0, 2], keepdims=True)|reduce_mean(c, axis=-1)
reduce_max(c, 1)|reduce_min(c, reduction_indices=[2])|reduce_prod(c, 1, keep_dims=True)
reduce_all(t, 0)|reduce_any(t, 1)|reduce_logsumexp(c, 1)|cumsum(a, 1)|cumsum(a, 1, True, True)
cumprod(p, axis=1)|argmax(a, 1)|argmin(a, 0)|argmax(a, axis=1, output_type=tf.int32)
norm(a)|norm(a, axis=1)|norm(a, 1, 0)|norm(a, np.inf, 1)|global_norm([a, b])
clip_by_value(a, -0.5, 0.5)|clip_by_norm(a, 1.0)|clip_by_norm(a, 0.5, [1])
clip_by_global_norm([a, b], 1.0)|clip_by_global_norm([a, b], 100.0)[0]
shape(a)|rank(c)|size(c)|reshape(c, [3, -1])|reshape(a, [-1])|tile(a, [2, 1])|fill([2, 3], 1.5)
squeeze(a[:, None])|squeeze(a[None, :, :, None], [0])|expand_dims(a, 1)|expand_dims(a, -1)
slice(c, [0, 1, 0], [2, -1, 3])|reverse(c, [1])|gather(a, i[1:])|gather(m, i)|gather(c, i, axis=1)
gather_nd(c, [[0, 1], [1, 2]])|scatter_nd([[0], [3]], a, [5, 3])|transpose(c)
transpose(c, [0, 2, 1])|matrix_transpose(c)|linalg.diag_part(m)|linalg.eye(3)|trace(m)
diag(d)|matrix_band_part(m, 1, 0)|broadcast_to(d, [2, 3])|invert_permutation([2, 0, 1])
concat([a, b], 0)|concat([c, c], -1)|stack([a, b])|stack([a, b], axis=-1)|unstack(c, axis=1)
split(c, 2, axis=2)|split(c, [1, 2], 1)|strided_slice(c, [0, 1, 0], [2, 3, 4], [1, 1, 2])
c[1]|c[:, 1:, ::2]|c[..., -1]|c[:, None, 0]|c[::-1, :, 1:-1]|a[:, i[1]]
space_to_depth(x, 2)|depth_to_space(x, 2)|space_to_batch_nd(x, [2, 2], [[0, 0], [0, 0]])
batch_to_space_nd(concat([x, x], 0), [2, 2], [[1, 0], [0, 1]])|reverse_sequence(z, n, 1, 0)
reverse_sequence(transpose(z, [1, 0, 2]), n, seq_dim=0, batch_dim=1)
one_hot(i, 3)|one_hot(i, 4, 2.0, -1.0, axis=0)|one_hot([0, 5, -1], 3)|zeros([2, 2])|ones([3])
pad(a, [[1, 0], [0, 2]])|pad(a, [[1, 0], [0, 2]], 'REFLECT')|pad(a, [[1, 1], [0, 2]], 'SYMMETRIC')
pad(a, [[1, 0], [0, 2]], constant_values=2.0)|where(t, a, b)|where([True, False], a, b)|where(t)
boolean_mask(a, [[True, False, True], [False, True, True]])|sequence_mask(n, 6)|sequence_mask(n)
meshgrid(d, d * 2.0)|meshgrid(d, a[0], indexing='ij')|unique([3, 1, 3, 2])|segment_sum(m, [0, 0, 1])
unsorted_segment_sum(m, [1, 0, 1], 3)|nn.top_k(a, 2)|nn.in_top_k(a, i, 2)|range(3)|range(1, 8, 2)
range(0.0, 1.0, 0.25)|linspace(0.0, 1.0, 5)|eye(2, 3)|matmul(a, m)|matmul(a, b, transpose_b=True)
matmul(a, b, transpose_a=True)|matmul(c, c, transpose_b=True)|einsum('ij,kj->ik', a, b)
tensordot(c, m, [[1], [0]])|tensordot(a, m, 1)|constant([[1, 2], [3, 4]])|constant(2.0, shape=[2, 2])
tuple([a, b])|accumulate_n([a, b])|broadcast_static_shape(tf.TensorShape([2, 1]), tf.TensorShape([3]))
nn.softmax(a)|nn.softmax(c, axis=1)|nn.log_softmax(a)|nn.leaky_relu(a)|nn.leaky_relu(a, 0.3)
nn.crelu(a)|nn.bias_add(x, d_(x))|nn.xw_plus_b(a, m, d)|nn.relu_layer(a, m, d)
nn.conv2d(x, w, [1, 1, 1, 1], 'SAME')|nn.conv2d(x, w, [1, 2, 2, 1], 'SAME')
nn.conv2d(x, filter=w, strides=[1, 2, 2, 1], padding='VALID')|nn.bias_add(nn.conv2d(x, w, 1, 'VALID'), w[0, 0, 0])
nn.conv2d(x, w, 1, 'SAME', dilations=[1, 2, 2, 1])|nn.atrous_conv2d(x, w, 2, 'VALID')
nn.conv1d(z, w[0], 2, 'SAME')|nn.conv3d(v, reshape(w[:, :, :, :4], [2, 3, 3, 2, 4]), [1, 1, 1, 1, 1], 'SAME')
nn.depthwise_conv2d(x, w[..., :2], [1, 1, 1, 1], 'SAME')
nn.separable_conv2d(x, w[..., :2], reshape(w[:, :2, :, :3], [1, 1, 8, 9]), [1, 1, 1, 1], 'VALID')
nn.conv2d_transpose(y, w, [2, 6, 6, 4], [1, 2, 2, 1], 'SAME')
nn.conv2d_transpose(y, w, [2, 7, 7, 4], [1, 2, 2, 1], 'VALID')
nn.max_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], 'SAME')|nn.max_pool(x, [1, 3, 3, 1], [1, 2, 2, 1], 'VALID')
nn.avg_pool(x, [1, 3, 3, 1], [1, 2, 2, 1], 'SAME')|nn.avg_pool(x, 2, 2, 'VALID')
nn.max_pool3d(v, [1, 2, 2, 2, 1], [1, 2, 2, 2, 1], 'SAME')
nn.avg_pool3d(v, [1, 2, 2, 2, 1], [1, 1, 1, 1, 1], 'VALID')
nn.lrn(x, 2, 1.0, 0.2, 0.75)|nn.local_response_normalization(x, bias=2.0)
nn.moments(x, [0, 1, 2])|nn.moments(x, [1, 2], keep_dims=True)|nn.l2_normalize(a, 1)
nn.batch_normalization(a, d, square(d), d, d, 0.01)
nn.batch_norm_with_global_normalization(x, x[0, 0, 0], square(x[0, 0, 1]), x[0, 0, 2], x[0, 0, 3], 0.1, True)
nn.fused_batch_norm(x, x[0, 0, 0], x[0, 0, 1])|nn.fused_batch_norm(x, x[0, 0, 0], x[0, 0, 1], x[0, 0, 2], square(x[0, 0, 3]), is_training=False)[0]
nn.embedding_lookup(m, i)|nn.embedding_lookup(m, [[0, 1], [2, 2]])|nn.zero_fraction(nn.relu(a))
nn.softmax_cross_entropy_with_logits(labels=l, logits=a)|nn.softmax_cross_entropy_with_logits_v2(labels=nn.softmax(b), logits=a)
nn.sparse_softmax_cross_entropy_with_logits(labels=i, logits=a)
nn.sigmoid_cross_entropy_with_logits(labels=u, logits=a)
nn.weighted_cross_entropy_with_logits(labels=u, logits=a, pos_weight=2.0)
losses.mean_squared_error(l, a)|losses.absolute_difference(l, a)|losses.log_loss(l, u)
losses.huber_loss(l, a, delta=0.7)|losses.hinge_loss(l, a)|losses.cosine_distance(l, a, axis=1)
losses.sigmoid_cross_entropy(l, a)|losses.softmax_cross_entropy(l, a, label_smoothing=0.1)
losses.sparse_softmax_cross_entropy(i, a)|losses.mean_squared_error(l, a, weights=[[1.0], [0.0]])
losses.mean_squared_error(l, a, reduction=losses.Reduction.SUM)
losses.mean_squared_error(l, a, reduction=losses.Reduction.NONE)
losses.mean_squared_error(l, a, weights=2.0, reduction=losses.Reduction.MEAN)
losses.compute_weighted_loss(a, l)
image.resize_images(x, [9, 3])|image.resize_images(x, [9, 3], align_corners=True)
image.resize_nearest_neighbor(x, [3, 9])|image.resize_bilinear(x, [4, 4])|image.resize_bicubic(x, [9, 3])
image.flip_left_right(x[0])|image.flip_up_down(x[0])|image.adjust_brightness(x, 0.5)
image.adjust_contrast(X, 2.0)|image.per_image_standardization(x[0])|image.grayscale_to_rgb(x[..., :1])
image.rgb_to_grayscale(x[..., :3])|image.crop_to_bounding_box(x, 1, 2, 3, 4)
image.pad_to_bounding_box(x, 1, 2, 9, 9)|image.resize_image_with_crop_or_pad(x, 4, 8)
image.total_variation(x)|extract_image_patches(x, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], 'VALID')
cond(reduce_sum(a) > 0.0, lambda: a * 2.0, lambda: b)|cond(reduce_sum(a) > 99.0, lambda: a * 2.0, lambda: b)
case([(reduce_sum(a) > 100.0, lambda: a)], default=lambda: b * 3.0)
while_loop(lambda s, e: s < 4, lambda s, e: (s + 1, e * a), [0, a])
map_fn(lambda e: e * e, a)|map_fn(lambda e: reduce_sum(e[0] * e[1]), (a, b), dtype=tf.float32)
scan(lambda s, e: s * 0.5 + e, a)|scan(lambda s, e: s * e, c, a[0][:, None] * ones([1, 4]))
foldl(lambda s, e: s * e, a)|gradients(reduce_sum(a * a * b), [a, b])|gradients(a * b, a, grad_ys=b)
train.exponential_decay(0.5, 7, 5, 0.9)|train.exponential_decay(0.5, 7, 5, 0.9, staircase=True)
train.natural_exp_decay(0.5, 7, 5, 0.9)|train.inverse_time_decay(0.5, 7, 5, 0.9)
train.polynomial_decay(0.5, 7, 10, 0.1, 2.0)|train.polynomial_decay(0.5, 17, 10, 0.1, cycle=True)
train.cosine_decay(0.5, 7, 10)|train.piecewise_constant(7, [5, 9], [1.0, 0.5, 0.1])
layers.flatten(x)|layers.max_pooling2d(x, 2, 2)|layers.average_pooling2d(x, 3, 2, 'same')
layers.max_pooling1d(z, 2, 2)|layers.average_pooling1d(z, 2, 1)|layers.max_pooling3d(v, 2, 2)
layers.average_pooling3d(v, 2, 1)|layers.dropout(a)|layers.dropout(a, training=False)
layers.dense(a, 4, kernel_initializer=K)|layers.dense(c, 2, tf.nn.relu, kernel_initializer=K, bias_initializer=K)
layers.conv1d(z, 3, 2, kernel_initializer=K)|layers.conv2d(x, 3, 3, 2, 'same', kernel_initializer=K)
layers.conv3d(v, 3, 2, kernel_initializer=K)|layers.conv2d_transpose(x, 3, 3, 2, kernel_initializer=K)
layers.conv2d_transpose(x, 3, 3, 2, 'same', kernel_initializer=K, use_bias=False)
layers.separable_conv2d(x, 3, 3, depthwise_initializer=K, pointwise_initializer=K)
layers.batch_normalization(x)|layers.batch_normalization(x, training=True)
layers.batch_normalization(a, training=True, gamma_initializer=K)|layers.batch_normalization(x, axis=1, training=True)
nn.dynamic_rnn(rnn_cell.BasicRNNCell(3, name='e'), z, dtype=tf.float32, scope=S)
nn.dynamic_rnn(rnn_cell.GRUCell(3), z, n, dtype=tf.float32, scope=S)
nn.dynamic_rnn(rnn_cell.BasicLSTMCell(3), z, n, dtype=tf.float32, scope=S)
nn.dynamic_rnn(rnn_cell.LSTMCell(3, use_peepholes=True, num_proj=2, cell_clip=0.5), z, dtype=tf.float32, scope=S)
nn.dynamic_rnn(rnn_cell.MultiRNNCell([rnn_cell.GRUCell(3), rnn_cell.BasicRNNCell(2)]), z, dtype=tf.float32, scope=S)
nn.static_rnn(rnn_cell.BasicLSTMCell(3, forget_bias=0.0), unstack(z, axis=1), dtype=tf.float32, sequence_length=n, scope=S)
nn.bidirectional_dynamic_rnn(rnn_cell.GRUCell(3), rnn_cell.GRUCell(2), z, n, dtype=tf.float32, scope=S)
nn.static_bidirectional_rnn(rnn_cell.GRUCell(3), rnn_cell.GRUCell(2), unstack(z, axis=1), dtype=tf.float32, scope=S)
constant_initializer(0.5)([2, 3])|zeros_initializer()([2])|ones_initializer()([2])
distributions.Normal(a, p).log_prob(b)
distributions.Normal(a, p).prob(b)
distributions.Normal(a, 2.0).cdf(b)
distributions.Normal(a, p).entropy()
distributions.Normal(a, p).variance()
distributions.kl_divergence(distributions.Normal(a, p), distributions.Normal(b, q))
distributions.Categorical(logits=a).log_prob(i)
distributions.Categorical(probs=u).prob(i)
distributions.Categorical(logits=a).entropy()
distributions.kl_divergence(distributions.Categorical(a), distributions.Categorical(b))
distributions.Bernoulli(logits=a).log_prob(l)
distributions.Bernoulli(probs=u).entropy()
shape(distributions.Normal(a, 1.0).sample(5))
shape(distributions.Categorical(logits=a).sample([4, 3]))
shape(distributions.Bernoulli(probs=u).sample())
segment_mean(m, constant([0, 0, 1]))|logical_xor(t, f)|count_nonzero(l, 1)|count_nonzero(l)
confusion_matrix(constant([0, 1, 2, 2]), constant([0, 2, 2, 1]), 3)|cross(a, b)|matrix_diag(a)
matrix_diag_part(m)|lin_space(0.0, 1.0, 5)|reverse_v2(a, [1])|arg_max(a, 1)|arg_min(a, 0)
nn.swish(a)|nn.space_to_depth(x, 2)|nn.depth_to_space(x, 2)
"""


# Steps of training, each of a new graph in which `opt` minimizes a loss of `w`.
OPTIMIZERS = """
train.GradientDescentOptimizer(0.1)|train.MomentumOptimizer(0.1, 0.8)
train.MomentumOptimizer(0.1, 0.8, use_nesterov=True)|train.AdamOptimizer(0.1, beta1=0.7)
train.AdamOptimizer()|train.RMSPropOptimizer(0.1)|train.RMSPropOptimizer(0.1, 0.8, momentum=0.5)
train.RMSPropOptimizer(0.1, centered=True)|train.AdagradOptimizer(0.1)|train.AdadeltaOptimizer(0.5)
train.AdagradOptimizer(0.1, initial_accumulator_value=0.5)|train.AdadeltaOptimizer(0.5, rho=0.7)
train.FtrlOptimizer(0.1)|train.FtrlOptimizer(0.1, l1_regularization_strength=0.3)
train.FtrlOptimizer(0.1, -0.6, 0.2, l2_regularization_strength=0.3)
"""


def rows() -> list[str]:
    """All expressions."""
    lines = [r for r in (ROWS + OPTIMIZERS).strip().splitlines() if r]
    found = []
    for line in lines:
        depth, text = 0, ""
        for i, c in enumerate(line):
            depth += (c in "([") - (c in ")]")
            bar = c == "|" and not depth and line[i - 1 : i + 2] != " | "
            if bar:
                found.append(text)
                text = ""
            else:
                text += c
        found.append(text)
    return [*found, *SCRIPTS]


def name(row: str) -> str:
    """What a row is about."""
    found = re.match(r"[\w.]+(?=\()", row)
    return found.group() if found else row


class _Names(dict):
    """tf's names, as they stand in a row."""

    def __init__(self, tf, given):
        super().__init__(given)
        self.tf = tf

    def __missing__(self, key):
        return getattr(self.tf, key)


def _flat(x):
    if isinstance(x, (list, tuple)):
        return [v for part in x for v in _flat(part)]
    return [x]


def projection(x, shift):
    """One number that depends on every element."""
    x = np.asarray(x)
    flat = x.reshape(-1).astype(np.float64)
    return float(flat @ np.cos(np.arange(flat.size) * 0.7 + shift)) + sum(x.shape) * 1e-3


def steps(tf, row: str) -> list[np.ndarray]:
    """A variable and what an optimizer keeps for it, after some steps."""
    optimizer = eval(row, {"train": tf.train})
    w = tf.Variable(ARRAYS["a"], name="w")
    op = optimizer.minimize(tf.reduce_sum((w * ARRAYS["b"] - ARRAYS["p"]) ** 2))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(4):
            session.run(op)
        names = sorted(v.name for v in tf.global_variables())
        return session.run(names)


def ran(tf, script: str) -> list[np.ndarray]:
    """What a script leaves in `out`."""
    with tf.Session() as session:
        space = {"tf": tf, "np": np, "s": session}
        exec(script, space)
        return space["out"]


def evaluate(tf, row: str) -> list[float]:
    """Projections of the value of a row, and of the gradients of its sum of squares."""
    tf.reset_default_graph()
    if row in SCRIPTS or "Optimizer(" in row:
        found = ran(tf, SCRIPTS[row]) if row in SCRIPTS else steps(tf, row)
        return [projection(x, i) for i, x in enumerate(found)]
    tensors = {k: tf.placeholder(v.dtype, v.shape, name=k) for k, v in ARRAYS.items()}
    seed = [0.0]

    def start(shape, dtype=None, partition_info=None):
        seed[0] += 1
        n = int(np.prod(shape))
        return tf.constant(np.sin(np.arange(n) * 1.3 + seed[0]).reshape(shape), tf.float32)

    spaces = {"tf": tf, "np": np, "K": start, "X": ARRAYS["x"], "rnn_cell": tf.nn.rnn_cell}
    spaces["d_"] = lambda x: x[0, 0, 0]
    with tf.variable_scope("rows", initializer=start) as scope:
        spaces["S"] = scope
        value = eval(row, _Names(tf, {**tensors, **spaces, "__builtins__": {}}))
    if hasattr(value, "as_list"):
        return [projection(value.as_list(), 0)]
    parts = [tf.convert_to_tensor(v) for v in _flat(value)]
    real = [v for v in parts if v.dtype in (tf.float32, tf.float64)]
    used = [k for k in re.findall(r"\b[a-z]\b", re.sub(r"'\w*'|lambda[^:]*:", "", row))]
    wrt = [k for k in dict.fromkeys(used) if k in ARRAYS and ARRAYS[k].dtype == np.float32]
    wrt = [k for k in wrt if k not in NO_GRADIENT]
    grads = []
    if real and wrt:
        total = tf.add_n([tf.reduce_sum(tf.cast(v, tf.float32) ** 2) for v in real])
        grads = tf.gradients(total, [tensors[k] for k in wrt])
        grads = [
            tf.zeros(ARRAYS[k].shape) if g is None else tf.convert_to_tensor(g)
            for k, g in zip(wrt, grads, strict=True)
        ]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = session.run([parts, grads], {tensors[k]: v for k, v in ARRAYS.items()})
    return [projection(x, i) for i, x in enumerate([*found[0], *found[1]])]


if __name__ == "__main__":
    import tensorflow.compat.v1 as theirs

    theirs.disable_v2_behavior()
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        for row in rows():
            values = evaluate(theirs, row)
            file.write("\t".join([row, *[f"{v:.6g}" for v in values]]) + "\n")

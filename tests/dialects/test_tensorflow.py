# SPDX-License-Identifier: Apache-2.0
"""TensorFlow 1 as a dialect: numbers of TensorFlow, sessions, checkpoints, words of errors."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.dialects.tensorflow as tf
import nnl.workspace as ws
from nnl.converters.runtimes.tensorflow import python_with_tensorflow
from tests.dialects import tensorflow_rows

HERE = Path(__file__).parent
NUMBERS = {
    name: np.array(values, float)
    for name, *values in (
        line.split("\t")
        for line in (HERE / "tensorflow_numbers.tsv").read_text("utf-8").splitlines()
    )
}


@pytest.fixture(autouse=True)
def graph():
    tf.reset_default_graph()
    yield tf.get_default_graph()
    tf.reset_default_graph()


@pytest.mark.parametrize("row", tensorflow_rows.rows())
def test_value_and_gradients(row):
    got = np.array(tensorflow_rows.evaluate(tf, row))
    np.testing.assert_allclose(got, NUMBERS[row], rtol=3e-4, atol=3e-4)


def test_rows_are_about_many_names():
    names = {tensorflow_rows.name(row) for row in tensorflow_rows.rows()}
    assert len({n for n in names if re.fullmatch(r"[\w.]+", n)}) >= 270


@pytest.mark.interop
def test_numbers_are_those_of_tensorflow(tmp_path):
    python = python_with_tensorflow()
    if python is None:
        pytest.skip("TensorFlow is not installed (NNL_TENSORFLOW_PYTHON names a Python with it)")
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
    found = subprocess.run(
        [python, "-m", "tests.dialects.tensorflow_rows", str(tmp_path / "found.tsv")],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    for line in (tmp_path / "found.tsv").read_text("utf-8").splitlines():
        row, *values = line.split("\t")
        np.testing.assert_allclose(np.array(values, float), NUMBERS[row], rtol=1e-4, atol=1e-5)


def test_fetches_and_feeds_are_one_function_whatever_their_order(graph):
    x, y = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32, [None])
    a, b = x + y, x * y
    with tf.Session() as session:
        feed = {x: [1, 2], y: [3, 4]}
        assert [v.tolist() for v in session.run([a, b], feed)] == [[4, 6], [3, 8]]
        found = session.run({"b": b, "more": [(a, a)]}, {y: [3, 4], x: [1, 2]})
        assert found["more"][0][1].tolist() == [4, 6]
        (transaction,) = graph.transactions.values()
        program = transaction.program
        session.run([b, a], feed)
        assert len(graph.transactions) == len(transaction.plans) == 1
        assert transaction.program is program
        session.run([a, b], {x: [1], y: [2]})  # another size: another program, not another function
        assert len(graph.transactions) == 1 and len(transaction.plans) == 2
        session.run(a, feed)
        assert len(graph.transactions) == 2


def test_only_what_is_fetched_runs():
    x, unused = tf.placeholder(tf.float32, [2]), tf.placeholder(tf.float32, [2])
    y = x * 2.0 + 1.0
    z = y * unused
    with tf.Session() as session:
        assert session.run(y, {x: [1, 2]}).tolist() == [3, 5]
        assert "unused" not in session.graph.transactions.popitem()[1].text()
        assert z.shape.as_list() == [2]


def test_numbers_at_the_ends_of_their_range():
    """Small, large, infinite and none: numpy in double precision is the oracle."""
    x = np.float32(
        [-200, -60, -1.5, -0.5, -1e-3, -1e-6, 0, 1e-8, 1e-6, 0.5, 1, 1.5, 2.5, 80, 2**23 + 1]
    )
    x = np.concatenate([x, np.float32([np.inf, -np.inf, np.nan])])
    p = tf.placeholder(tf.float32, [None])
    made = {np.expm1: tf.expm1(p), np.log1p: tf.log1p(p), np.rint: tf.round(p)}
    made |= {np.zeros_like: tf.zeros_like(p), np.ones_like: tf.ones_like(p)}
    with tf.Session() as session, np.errstate(all="ignore"):
        for f, y in made.items():
            want = f(x.astype(np.float64)).astype(np.float32)
            np.testing.assert_allclose(session.run(y, {p: x}), want, rtol=2e-6)
        mended = session.run(tf.where(tf.is_nan(p), tf.zeros_like(p), p), {p: x})
        np.testing.assert_array_equal(mended, np.where(np.isnan(x), 0, x))


def test_layers_follow_a_normalization_that_trains_by_a_placeholder():
    """The shape of what either branch gives stays known: a generator of a GAN is made so."""
    z, training = tf.placeholder(tf.float32, [None, 8]), tf.placeholder(tf.bool)
    h = tf.layers.batch_normalization(tf.layers.dense(z, 64), training=training)
    assert h.shape.as_list() == [None, 64]
    h = tf.layers.conv2d_transpose(tf.reshape(h, [-1, 4, 4, 4]), 2, 5, 2, "same")
    h = tf.layers.batch_normalization(h, training=training)
    assert h.shape.as_list() == [None, 8, 8, 2]
    mixed = tf.cond(training, lambda: tf.ones([2, 3]), lambda: tf.ones([2, 4]))
    assert mixed.shape.as_list() == [2, None]


def test_gradients_inside_the_body_of_a_loop():
    """Newton's steps, and gradients row by row: with respect to what each turn gives."""
    x = tf.placeholder(tf.float32, [None, 2])
    rows = tf.map_fn(lambda r: tf.gradients(tf.reduce_sum(r**3), r)[0], x)

    def step(i, r):
        return i + 1, r - (r * r - 2.0) / tf.gradients(r * r - 2.0, r)[0]

    root = tf.while_loop(lambda i, r: i < 6, step, [tf.constant(0), tf.constant(1.0)])[1]
    value = np.float32([[1, 2], [3, -4]])
    with tf.Session() as session:
        np.testing.assert_allclose(session.run(rows, {x: value}), 3 * value**2, rtol=1e-5)
        assert abs(session.run(root) - 2**0.5) < 1e-6


def test_what_was_fed_and_fetched_is_not_fed_again():
    x = tf.placeholder(tf.float32, [2])
    with tf.Session() as session:
        assert session.run([x, x * 2.0], {x: [1, 2]})[0].tolist() == [1, 2]
        with pytest.raises(tf.errors.InvalidArgumentError, match="You must feed a value"):
            session.run(x * 3.0)


def test_images_of_any_size_feed_one_placeholder():
    x = tf.placeholder(tf.float32, [None, None, None, 3])
    y = tf.layers.conv2d(x, 4, 3, 2, "same", activation=tf.nn.relu)
    assert y.shape.as_list() == [None, None, None, 4]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for n, size in ((1, 8), (2, 11)):
            shape = session.run(y, {x: np.ones((n, size, size, 3))}).shape
            assert shape == (n, (size + 1) // 2, (size + 1) // 2, 4)


def test_sizes_that_follow_from_open_ones_are_open():
    x = tf.placeholder(tf.float32, [None, 3])
    n = tf.shape(x)[0]
    assert tf.fill([n, 2], 1.0).shape.as_list() == [None, 2]
    places = tf.tile(tf.expand_dims(tf.range(n), 0), [4, 1])
    assert tf.gather(tf.ones([16, 5]), places).shape.as_list() == [4, None, 5]


def test_what_decides_shapes_is_fed():
    n, x = tf.placeholder(tf.int32, []), tf.placeholder(tf.float32, [None])
    y = tf.reshape(x, [n, -1]) + tf.one_hot(0, tf.size(x) // n)
    with tf.Session() as session:
        assert session.run(y, {n: 2, x: [1, 2, 3, 4]}).tolist() == [[2, 2], [4, 4]]
        assert session.run(y, {n: 1, x: [1, 2]}).tolist() == [[2, 2]]


def test_variables_are_parameters_that_other_functions_share():
    w = tf.get_variable("deep/w", [2], initializer=tf.ones_initializer())
    x = tf.placeholder(tf.float32, [2])
    loss = tf.reduce_sum((w * x) ** 2.0)
    op = tf.train.AdamOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(op, {x: [1, 2]})
        parameter = nn.get_parameters(grad_only=False)["deep/w"]
        np.testing.assert_array_equal(parameter.d, session.run(w))
        parameter.d = [5, 6]
        assert session.run(w).tolist() == [5, 6]
        other = ws.Function([x], [loss], updates={w: w * 2.0})
        assert other([1, 0])[0] == 25 and session.run(w).tolist() == [10, 12]
    names = [v.name for v in tf.global_variables()]
    assert names[0] == "deep/w:0" and {"deep/w/Adam:0", "deep/w/Adam_1:0"} < set(names)


def test_a_recurrent_network_over_lengths_learns():
    x, n = tf.placeholder(tf.float32, [None, None, 3]), tf.placeholder(tf.int32, [None])
    y = tf.placeholder(tf.int32, [None])
    outputs, state = tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(8), x, n, dtype=tf.float32)
    logits = tf.layers.dense(state, 2)
    loss = tf.losses.sparse_softmax_cross_entropy(labels=y, logits=logits)
    op = tf.train.AdamOptimizer(0.05).minimize(loss)
    rng = np.random.default_rng(0)
    tf.set_random_seed(1)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        losses = []
        for t in (3, 5) * 15:
            values = rng.normal(size=(16, t, 3))
            feed = {x: values, n: np.full(16, t), y: values[:, 0, 0] > 0}
            losses.append(session.run([loss, op], feed)[0])
        assert np.mean(losses[-4:]) < 0.7 * np.mean(losses[:4])
        out = session.run(outputs, {x: np.ones((2, 4, 3)), n: [2, 4]})
        assert not out[0, 2:].any() and out[1, 2:].all()


def test_random_numbers(graph):
    n = 20000
    tf.set_random_seed(3)
    shape = tf.placeholder(tf.int32, [1])
    normal, uniform = tf.random_normal(shape, 1.0, 2.0), tf.random_uniform([n], -1, 3)
    cut, whole = tf.truncated_normal([n], 1.0, 0.5), tf.random_uniform([n], 2, 5, tf.int32)
    drawn = tf.multinomial(tf.log([[0.7, 0.1, 0.2]]), n)
    dropped = tf.nn.dropout(tf.ones([n]), 0.75)
    with tf.Session() as session:
        every = [normal, uniform, cut, whole, drawn, dropped]
        a, b, c, d, e, f = session.run(every, {shape: [n]})
        again = session.run(every, {shape: [n]})[0]
        order = session.run(tf.random_shuffle(tf.range(10)))
    assert abs(a.mean() - 1) < 0.06 and abs(a.std() - 2) < 0.06 and not np.array_equal(a, again)
    assert -1 <= b.min() < -0.99 and 2.99 < b.max() <= 3 and abs(b.mean() - 1) < 0.05
    # a normal distribution cut off at two deviations has 0.8796 of the deviation
    assert abs(c - 1).max() <= 1.0001 and abs(c.std() - 0.5 * 0.8796) < 0.01
    assert sorted(set(d.tolist())) == [2, 3, 4] and d.dtype == np.int32
    assert abs((e == 0).mean() - 0.7) < 0.02 and e.shape == (1, n)
    assert set(np.unique(f)) == {0, np.float32(4 / 3)} and abs((f > 0).mean() - 0.75) < 0.02
    assert sorted(order) == list(range(10))


def test_initializers():
    def drawn(initializer, shape):
        tf.set_random_seed(1)
        v = tf.get_variable("v", shape, initializer=initializer)
        with tf.Session() as session:
            session.run(v.initializer)
            value = session.run(v)
        tf.reset_default_graph()
        return value

    w = drawn(None, [100, 200])  # Glorot, uniform
    assert abs(w).max() <= (6 / 300) ** 0.5 and abs(w.std() - (2 / 300) ** 0.5) < 2e-3
    w = drawn(tf.initializers.he_normal(), [3, 3, 20, 50])
    assert abs(w.std() - (2 / 180) ** 0.5) < 2e-3
    w = drawn(tf.orthogonal_initializer(2.0), [6, 4])
    np.testing.assert_allclose(w.T @ w, 4 * np.eye(4), atol=1e-5)
    assert drawn(tf.variance_scaling_initializer(distribution="uniform"), [4, 1000]).std() > 0.45
    assert drawn(tf.constant_initializer([1, 2]), [2]).tolist() == [1, 2]


def saved(folder, shape=(2, 3)):
    v = tf.Variable(np.arange(np.prod(shape), dtype=np.float32).reshape(shape), name="v")
    n = tf.Variable(np.int64(7), name="n", trainable=False)
    session = tf.InteractiveSession()
    session.run(tf.global_variables_initializer())
    saver = tf.train.Saver()
    return session, v, n, saver, saver.save(session, f"{folder}/model", global_step=n)


def test_checkpoints_come_back(tmp_path):
    session, v, n, saver, path = saved(tmp_path)
    assert path.endswith("model-7") and tf.train.latest_checkpoint(str(tmp_path)) == path
    assert tf.train.list_variables(path) == [("n", []), ("v", [2, 3])]
    session.run([v.assign(v * 2.0), n.assign_add(1)])
    second = saver.save(session, f"{tmp_path}/model", global_step=n)
    saver.restore(session, path)
    assert session.run(v).tolist() == [[0, 1, 2], [3, 4, 5]] and n.eval() == 7
    tf.train.Saver({"v": v}).restore(session, second)
    assert session.run(v).tolist() == [[0, 2, 4], [6, 8, 10]] and n.eval() == 7
    few = tf.train.Saver(max_to_keep=1)
    few.save(session, f"{tmp_path}/few", 1), few.save(session, f"{tmp_path}/few", 2)
    assert not list(tmp_path.glob("few-1*")) and len(list(tmp_path.glob("few-2*"))) == 2
    assert not list(tmp_path.glob("*.new"))
    session.close()


def test_a_damaged_checkpoint_changes_nothing(tmp_path):
    session, v, n, saver, path = saved(tmp_path)
    first = session.run([v, n])
    session.run([v.assign(v + 1.0), n.assign_add(1)])
    before = session.run([v, n])
    for name in (".index", ".data-00000-of-00001"):
        file = Path(path + name)
        whole = file.read_bytes()
        for at in range(0, len(whole), 7):
            for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :]):
                file.write_bytes(damaged)
                wanted = before
                try:
                    saver.restore(session, path)
                    wanted = first  # the byte is one that says nothing
                except tf.errors.OpError:
                    pass
                for a, b in zip(session.run([v, n]), wanted, strict=True):
                    np.testing.assert_array_equal(a, b)
                v.load(before[0]), n.load(before[1])
        file.write_bytes(whole)
    saver.restore(session, path)
    session.close()


@pytest.mark.interop
def test_tensorflow_reads_and_writes_the_same_files(tmp_path):
    python = python_with_tensorflow()
    if python is None:
        pytest.skip("TensorFlow is not installed (NNL_TENSORFLOW_PYTHON names a Python with it)")
    session, v, n, saver, path = saved(tmp_path)
    code = f"""
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
v, n = tf.Variable([[0.0] * 3] * 2, name="v"), tf.Variable(0, dtype=tf.int64, name="n")
with tf.Session() as s:
    saver = tf.train.Saver()
    saver.restore(s, {path!r})
    s.run([v.assign(v * 10.0), n.assign_add(1)])
    saver.save(s, {str(tmp_path / "theirs")!r})
"""
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    saver.restore(session, str(tmp_path / "theirs"))
    assert session.run(v).tolist() == [[0, 10, 20], [30, 40, 50]] and n.eval() == 8
    session.close()


def test_summaries_are_events(tmp_path):
    x = tf.placeholder(tf.float32, [2, 3, 3, 1])
    tf.summary.scalar("mean", tf.reduce_mean(x)), tf.summary.histogram("x:0", x)
    tf.summary.image("picture", x)
    with tf.Session() as session:
        writer = tf.summary.FileWriter(str(tmp_path), session.graph)
        made = session.run(tf.summary.merge_all(), {x: np.ones((2, 3, 3, 1))})
        writer.add_summary(made, 3)
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    assert all(t in content for t in (b"mean", b"x_0", b"picture/image/1", b"PNG"))


# What TensorFlow says, up to the form of the node that it prints.
WRONG = {
    "tf.matmul(x, tf.ones([2, 2]))": "Dimensions must be equal, but are 3 and 2 for 'MatMul' .*"
    r"with input shapes: \[\?,3\], \[2,2\]",
    "x + tf.ones([4])": r"Dimensions must be equal, but are 3 and 4 for .*\[\?,3\], \[4\]",
    "tf.matmul(x, tf.ones([3]))": "Shape must be rank 2 but is rank 1 for 'MatMul'",
    "tf.nn.bias_add(i, tf.ones([4]))": "Dimensions must be equal, but are 3 and 4 for 'BiasAdd'",
    "tf.nn.conv2d(i, tf.ones([3, 3, 4, 5]), 1, 'SAME')": r"3 and 4 for .*\[\?,8,8,3\], \[3,3,4,5\]",
    "tf.concat([x, tf.ones([2, 4])], 0)": "Dimensions must be equal, but are 3 and 4 for 'concat'",
    "tf.reshape(tf.ones([2, 3]), [4, -1])": "must be evenly divisible by 4 but is 6 for 'Reshape'",
    "tf.reshape(tf.ones([2, 3]), [4])": r"Cannot reshape a tensor with 6 elements to shape \[4\] "
    r"\(4 elements\)",
    "tf.reduce_sum(x, 5)": "Invalid reduction dimension 5 for input with 2 dimensions for 'Sum'",
    "tf.transpose(x, [0, 0])": "perm is .0, 0., wanted a permutation of 2 axes for 'transpose'",
    "s.run(x, {x: [[1, 2, 3], [4]]})": "inhomogeneous",
    "s.run(n, {n: [2**40]})": "out of bounds for int32",
    "tf.split(tf.ones([2, 5]), 2, 1)": "Dimension size must be evenly divisible by 2 but is 5",
    "tf.Variable([1.0, 2.0]).assign([1.0, 2.0, 3.0])": "Dimensions must be equal, but are 2 and 3",
    "x + tf.constant(1)": "Tensor conversion requested dtype float32 for Tensor with dtype int32",
    "tf.constant(1.5, tf.int32)": "Expected int32, but got 1.5 of type 'float'",
    "tf.get_variable('w', [3])": "Variable w already exists, disallowed. Did you mean to set reuse",
    "tf.get_variable('v', [None])": r"Shape of a new variable \(v\) must be fully defined",
    "bool(x)": "Using a `tf.Tensor` as a Python `bool` is not allowed",
    "list(x)": "Tensor objects are only iterable when eager execution is enabled",
    "tf.unstack(x)": r"Cannot infer argument `num` from shape \(\?, 3\)",
    "tf.add(x, x, name='a b')": "'a b' is not a valid scope name",
    "tf.layers.dense(tf.placeholder(tf.float32, [None, None]), 2)": "last dimension of the inputs",
    "tf.nn.softmax_cross_entropy_with_logits(x, x)": "Only call `softmax_cross_entropy_with_logits`"
    " with named arguments",
    "tf.nn.sparse_softmax_cross_entropy_with_logits(labels=x, logits=x)": "Rank mismatch: Rank of",
    "tf.nn.conv2d(i, tf.ones([3, 3, 3, 5]), 1, 'FULL')": "padding is 'FULL', wanted 'SAME' or",
    "tf.cond(True, lambda: x, lambda: x)": "pred must not be a Python bool",
    "tf.while_loop(lambda a: a < 3, lambda a: (a, a), [1])": "Got 2 outputs for 1 inputs",
    "tf.train.AdamOptimizer().minimize(tf.reduce_sum(x))": "No gradients provided for any variable",
    "tf.train.AdamOptimizer().minimize(w, var_list=[])": "No variables to optimize",
    "tf.train.AdamOptimizer(decay=3)": r"Adam: got \['decay'\]",
    "tf.train.AdamOptimizer(0.1).minimize(w * x.nothing)": "nothing",
    "tf.Assert(tf.constant(False), ['wrong'])": "assertion failed: .*wrong",
    "s.run(w)": "Attempting to use uninitialized value w",
    "s.run(x)": r"You must feed a value for placeholder tensor 'x' with dtype float32 and shape \["
    r"\?, 3\]",
    "s.run(x, {x: np.ones((2, 4))})": r"Cannot feed value of shape \(2, 4\) for Tensor x:0, which "
    r"has shape \(\?, 3\)",
    "s.run('xx:0')": "The name 'xx:0' refers to a Tensor which does not exist. The operation, 'xx'",
    "s.run(3)": "Fetch argument 3 has invalid type <class 'int'>, must be a string or Tensor",
    "s.run(x, {x: tf.ones([1, 3])})": "The value of a feed cannot be a tf.Tensor object",
    "s.run(other)": "is not an element of this graph",
    "s.run(tf.assert_less(x, 1.0), {x: [[0, 1, 2]]})": "assertion failed: assert_less",
    "x.eval()": r"Cannot evaluate tensor using `eval\(\)`: No default session is registered",
    "tf.train.Saver([w]).restore(s, '/nowhere')": "The passed save_path is not a valid checkpoint",
    "tf.train.Saver([w]).save(s, '/nowhere/model')": "Parent directory of /nowhere/model doesn't",
    "s.run(tf.data.Dataset.from_tensors(x).make_initializable_iterator().get_next())": "has not "
    "been initialized. Ensure that you have run the initializer operation for this iterator",
    "s.run(tf.data.Dataset.range(0).make_one_shot_iterator().get_next())": "End of sequence",
    "s.run(tf.data.Dataset.from_tensors([1, 2, 3]).padded_batch(1, [2]).make_one_shot_iterator()"
    ".get_next())": r"padded_batch: an element of shape \(3,\) is larger than \(2,\)",
    "tf.data.Dataset.range(3).make_one_shot_iterator().initializer": "does not have an initializer",
    "s.run(tf.decode_csv(['1,2'], [[0]]))": "Expect 1 fields but have 2 in record",
    "s.run(tf.decode_csv(['1,'], [[0], np.zeros(0)]))": "a field is required but missing",
    "s.run(tf.string_to_number(['a']))": "could not convert string to float: 'a'",
    "s.run(tf.read_file('/nowhere/x'))": "No such file or directory: '/nowhere/x'",
    "s.run(tf.FIFOQueue(3, [tf.int32]).dequeue())": "fifo_queue: it is empty, and nothing puts",
    "tf.train.StopAtStepHook()": "One of num_steps or last_step must be specified",
    "tf.get_default_graph().get_operation_by_name('q')": "The name 'q' refers to an Operation not",
}


@pytest.mark.parametrize("code", WRONG)
def test_what_is_wrong_is_said_in_its_words(code):
    with tf.Graph().as_default():
        other = tf.constant(1.0)
    x = tf.placeholder(tf.float32, [None, 3], name="x")
    i = tf.placeholder(tf.float32, [None, 8, 8, 3], name="i")
    w = tf.get_variable("w", [])
    n = tf.placeholder(tf.int32, [None])
    space = {"tf": tf, "np": np, "n": n, "x": x, "i": i, "w": w, "s": tf.Session(), "other": other}
    kinds = (ValueError, TypeError, KeyError, AttributeError, OverflowError, tf.errors.OpError)
    with pytest.raises(kinds, match=WRONG[code]):
        eval(code, space)


def test_a_run_that_fails_leaves_variables_without_value():
    x = tf.placeholder(tf.float32, [None, 2])
    v = tf.Variable(tf.matmul(tf.ones([2, 2]), tf.ones([2, 2])), name="v")
    bad = v.assign(tf.matmul(x, x))
    with tf.Session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="MatMul"):
            session.run(bad, {x: np.ones((3, 2))})
        with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized value v"):
            session.run(v)
        assert session.run(tf.report_uninitialized_variables()).tolist() == [b"v"]
        session.run(v.initializer)
        assert session.run(v).tolist() == [[2, 2], [2, 2]]
    with pytest.raises(RuntimeError, match="Attempted to use a closed Session"):
        session.run(v)


def test_a_scope_gives_arguments_of_slim():
    from nnl.dialects.tensorflow.contrib import slim

    x = np.sin(np.arange(2 * 6 * 6 * 3.0)).reshape(2, 6, 6, 3).astype("float32")
    with slim.arg_scope([slim.conv2d], padding="VALID", weights_regularizer=slim.l2_regularizer(2)):
        y = slim.repeat(tf.constant(x), 2, slim.conv2d, 4, [3, 3], scope="c", activation_fn=None)
        z = slim.conv2d(y, 2, 1, padding="SAME", normalizer_fn=slim.batch_norm, scope="n")
    out = slim.fully_connected(slim.flatten(slim.max_pool2d(z, 2)), 3, scope="f")
    names = [v.op.name for v in tf.trainable_variables()]
    assert names == [
        *(f"c/c_{i}/{n}" for i in (1, 2) for n in ("weights", "biases")),
        *("n/weights", "n/BatchNorm/beta", "f/weights", "f/biases"),
    ]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        w = dict(zip(names, session.run([f"{n}:0" for n in names]), strict=True))
        assert [v.shape.as_list() for v in (y, z)] == [[2, 2, 2, 4], [2, 2, 2, 2]]
        one = tf.nn.conv2d(x, w["c/c_1/weights"], 1, "VALID")
        two = session.run(tf.nn.conv2d(one, w["c/c_2/weights"], 1, "VALID"))
        np.testing.assert_allclose(session.run(y), two, rtol=1e-4, atol=1e-5)
        squares = [np.sum(w[n] ** 2) for n in ("c/c_1/weights", "c/c_2/weights", "n/weights")]
        np.testing.assert_allclose(
            session.run(tf.losses.get_regularization_loss()), sum(squares), rtol=1e-5
        )
        loss = slim.losses.sparse_softmax_cross_entropy(out, [0, 2])
        p = session.run(tf.nn.log_softmax(out))
        np.testing.assert_allclose(session.run(loss), -(p[0, 0] + p[1, 2]) / 2, rtol=1e-5)
    with pytest.raises(ValueError, match="is not decorated with @add_arg_scope"):
        with slim.arg_scope([tf.layers.dense], units=3):
            pass

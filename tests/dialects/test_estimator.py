# SPDX-License-Identifier: Apache-2.0
"""tf.estimator, the tutorials' reader of digits, and losses of drawn classes."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

import nnl.dialects.tensorflow as tf
from nnl.dialects.tensorflow.examples.tutorials.mnist import input_data

RNG = np.random.default_rng(4)
X = RNG.normal(size=(64, 3)).astype(np.float32)
Y = X @ np.float32([1, -2, 0.5]) + np.float32(0.25)


def model(features, labels, mode, params):
    y = tf.layers.dense(features["x"], 1, name="line")[:, 0]
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"y": y, "twice": 2.0 * y})
    loss = tf.reduce_mean((y - labels) ** 2)
    step = tf.train.get_global_step()
    train = tf.train.GradientDescentOptimizer(params["rate"]).minimize(loss, global_step=step)
    measures = {"error": tf.metrics.mean_absolute_error(labels, y)}
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=train, eval_metric_ops=measures, predictions=y
    )


def inputs(batch_size=16, num_epochs=None, shuffle=True):
    return tf.estimator.inputs.numpy_input_fn(
        {"x": X}, Y, batch_size=batch_size, num_epochs=num_epochs, shuffle=shuffle
    )


def test_an_estimator_trains_goes_on_and_is_asked(tmp_path):
    folder = str(tmp_path / "model")
    made = tf.estimator.Estimator(model, folder, params={"rate": 0.1})
    assert made.train(inputs(), steps=10) is made
    tf.estimator.Estimator(model, folder, params={"rate": 0.1}).train(inputs(), max_steps=80)
    found = made.evaluate(inputs(10, 1, False))
    assert found["global_step"] == 80 and found["loss"] < 1e-2
    w, b = (made.get_variable_value(f"line/{n}") for n in ("kernel", "bias"))
    np.testing.assert_allclose(found["error"], np.abs(X @ w[:, 0] + b - Y).mean(), rtol=1e-4)
    made.train(inputs(), max_steps=80)  # there are as many already
    assert made.get_variable_value("global_step") == 80
    asked = tf.estimator.inputs.numpy_input_fn({"x": X}, batch_size=10, shuffle=False)
    rows = list(made.predict(asked))
    np.testing.assert_allclose([r["y"] for r in rows], X @ w[:, 0] + b, rtol=1e-4, atol=1e-5)
    batch = next(made.predict(asked, ["twice"], yield_single_examples=False))
    np.testing.assert_allclose(batch["twice"], 2 * (X @ w[:, 0] + b)[:10], rtol=1e-4, atol=1e-5)
    assert "line/kernel" in made.get_variable_names()


def test_train_and_evaluate_with_data_sets_and_hooks(tmp_path):
    class Count(tf.train.SessionRunHook):
        runs = 0

        def after_run(self, run_context, run_values):
            self.runs += 1

    def read():
        data = tf.data.Dataset.from_tensor_slices(({"x": X}, Y))
        return data.repeat().batch(32)

    count, config = Count(), tf.estimator.RunConfig(tf_random_seed=3, log_step_count_steps=None)
    made = tf.estimator.Estimator(model, str(tmp_path), config, {"rate": 0.1})
    train = tf.estimator.TrainSpec(read, 12, [count])
    found, exported = tf.estimator.train_and_evaluate(made, train, tf.estimator.EvalSpec(read, 2))
    assert count.runs == 12 and found["global_step"] == 12 and exported is None
    w, b = (made.get_variable_value(f"line/{n}") for n in ("kernel", "bias"))
    np.testing.assert_allclose(found["loss"], np.mean((X @ w[:, 0] + b - Y) ** 2), rtol=1e-4)


def test_what_estimators_refuse(tmp_path):
    made = tf.estimator.Estimator(model, str(tmp_path), params={"rate": 0.1})
    spec, keys = tf.estimator.EstimatorSpec, tf.estimator.ModeKeys
    bare = tf.estimator.Estimator(lambda features: features)
    for call, words in [
        (lambda: made.evaluate(inputs()), f"Could not find trained model in model_dir: {tmp_path}"),
        (lambda: next(made.predict(inputs())), "Could not find trained model"),
        (lambda: made.train(inputs(), steps=1, max_steps=1), "both steps and max_steps"),
        (lambda: made.train(inputs(), steps=0), "Must specify steps > 0, given: 0"),
        (lambda: spec(keys.TRAIN, loss=1.0), "Missing train_op"),
        (lambda: spec(keys.EVAL), "Missing loss"),
        (lambda: spec(keys.PREDICT), "Missing predictions"),
        (lambda: spec("test"), "Invalid mode: 'test'"),
        (lambda: bare.train(inputs()), "model_fn should return an EstimatorSpec"),
        (lambda: inputs(shuffle=None), "shuffle must be provided .* got None"),
        (lambda: made.config.replace(nothing=1), "RunConfig has no 'nothing'"),
        (
            lambda: tf.estimator.inputs.numpy_input_fn({"x": X}, Y[1:], shuffle=False),
            "Length of tensors in x and y is mismatched: {'x': 64, 'target': 63}",
        ),
    ]:
        with pytest.raises(ValueError, match=words):
            call()


def write(folder, part, images):
    labels = np.arange(len(images)) % 10
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        head = struct.pack(f">I{array.ndim}I", 0x800 | array.ndim, *array.shape)
        with gzip.open(folder / f"{part}-{name}-ubyte.gz", "wb") as file:
            file.write(head + array.astype(np.uint8).tobytes())


def test_digits_are_read_and_come_in_batches(tmp_path):
    images = RNG.integers(0, 256, (12, 4, 4))
    write(tmp_path, "train", images)
    write(tmp_path, "t10k", images[:3])
    mnist = input_data.read_data_sets(str(tmp_path), one_hot=True, validation_size=2, seed=1)
    sizes = [part.num_examples for part in mnist]
    assert sizes == [10, 2, 3] and mnist.train.images.shape == (10, 16)
    np.testing.assert_array_equal(mnist.test.labels, np.eye(10)[:3])
    seen = np.concatenate([mnist.train.next_batch(4)[0] for _ in range(5)])  # two epochs
    assert mnist.train.epochs_completed == 1
    want = np.sort(images[2:].reshape(10, -1).sum(1))
    for half in (seen[:10], seen[10:]):
        np.testing.assert_array_equal(np.sort((half * 255).round().sum(1)), want)
    plain = input_data.read_data_sets(
        str(tmp_path), reshape=False, dtype=tf.uint8, validation_size=0
    )
    found, labels = plain.train.next_batch(3, shuffle=False)
    np.testing.assert_array_equal(found[..., 0], images[:3])
    assert labels.tolist() == [0, 1, 2]


def test_digits_that_are_missing_or_damaged(tmp_path):
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte.gz: there is no such"):
        input_data.read_data_sets(str(tmp_path))
    images = RNG.integers(0, 256, (12, 4, 4))
    write(tmp_path, "train", images)
    write(tmp_path, "t10k", images[:3])
    with pytest.raises(
        ValueError, match="Validation size should be between 0 and 12. Received: 5000"
    ):
        input_data.read_data_sets(str(tmp_path))
    plain = input_data.read_data_sets(str(tmp_path), validation_size=0)
    with pytest.raises(ValueError, match="batch_size 13 is more than the 12 examples"):
        plain.train.next_batch(13)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    good = gzip.decompress(path.read_bytes())
    for data, words in [
        (gzip.compress(good[:-1]), "it has 207 bytes, which do not fit the sizes"),
        (gzip.compress(b"\0\0\x0d" + good[3:]), "it is no IDX file of bytes"),
        (gzip.compress(b""), "it is no IDX file of bytes"),
        (gzip.compress(good)[:-9], "ended before"),
        (good, "Not a gzipped file"),
    ]:
        path.write_bytes(data)
        with pytest.raises(ValueError, match=f"{path.name}: .*{words}"):
            input_data.read_data_sets(str(tmp_path), validation_size=0)


def test_losses_of_drawn_classes():
    """The drawn scores stand for those of all classes: many draws give the sum over them."""
    tf.reset_default_graph()
    classes, drawn = 20, 200_000
    w, b, x = (RNG.normal(size=s).astype(np.float32) for s in ((classes, 4), classes, (3, 4)))
    labels = np.array([[1], [7], [19]])
    scores, ids = x @ w.T + b, np.arange(classes)
    often = drawn * np.log((ids + 2) / (ids + 1)) / np.log(classes + 1)
    true = np.take_along_axis(scores - np.log(often), labels, 1)[:, 0]
    others = np.where(ids == labels, 0, np.exp(scores)).sum(1)
    want = np.log(np.exp(true) + others) - true
    noise = often * np.logaddexp(0, scores - np.log(often))  # of nce_loss, hits among them
    nce = np.logaddexp(0, -true) + noise.sum(1)
    with tf.Session() as session:
        given = w, b, labels, x, drawn, classes
        found = session.run([tf.nn.sampled_softmax_loss(*given), tf.nn.nce_loss(*given)])
    np.testing.assert_allclose(found[0], want, rtol=0.02)
    np.testing.assert_allclose(found[1], nce, rtol=0.02)
    tf.reset_default_graph()

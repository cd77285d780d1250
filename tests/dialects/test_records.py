# SPDX-License-Identifier: Apache-2.0
"""TFRecords in the dialect of TensorFlow 1."""

from __future__ import annotations

import numpy as np
import pytest

import nnl.dialects.tensorflow as tf

# Written by TensorFlow 2.21: {"x": [3, 3.5], "y": [0, 1, 2], "n": [b"name3"], "o": [3]}
WRITTEN = (
    "3f00000000000000516576610a3d0a0a0a016f12051a030a01030a110a0178120c120a0a0800004040000060"
    "400a0e0a016e12090a070a056e616d65330a0c0a017912071a050a0300010260832888"
)
FEATURES = {
    "x": tf.FixedLenFeature([2], tf.float32),
    "y": tf.VarLenFeature(tf.int64),
    "n": tf.FixedLenFeature((), tf.string),
    "o": tf.FixedLenFeature([1], tf.int64, default_value=-1),
    "s": tf.FixedLenSequenceFeature([], tf.int64, allow_missing=True, default_value=7),
}


@pytest.fixture(autouse=True)
def graph():
    tf.reset_default_graph()
    yield
    tf.reset_default_graph()


def example(**features):
    kinds = {
        "f": lambda v: tf.train.Feature(float_list=tf.train.FloatList(value=v)),
        "i": lambda v: tf.train.Feature(int64_list=tf.train.Int64List(value=v)),
        "S": lambda v: tf.train.Feature(bytes_list=tf.train.BytesList(value=v)),
    }
    made = {k: kinds[np.asarray(v).dtype.kind](v) for k, v in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


def test_a_file_of_tensorflow_is_read(tmp_path):
    path = str(tmp_path / "a.tfrecord")
    with open(path, "wb") as file:
        file.write(bytes.fromhex(WRITTEN))
    (record,) = tf.python_io.tf_record_iterator(path)
    with tf.Session() as session:
        found = session.run(tf.parse_single_example(record, FEATURES))
        assert found["x"].tolist() == [3, 3.5] and found["n"] == b"name3" and found["o"] == [3]
        assert found["y"].values.tolist() == [0, 1, 2] and found["y"].dense_shape == [3]
        assert found["s"].size == 0
        reader = tf.TFRecordReader()
        _, value = reader.read(tf.train.string_input_producer([path], num_epochs=1))
        session.run(tf.local_variables_initializer())
        assert session.run(value) == record
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(value)


@pytest.mark.parametrize("packed", ["NONE", "GZIP", "ZLIB"])
def test_what_is_written_is_read_and_batched(tmp_path, packed):
    path = str(tmp_path / "a.tfrecord")
    options = tf.python_io.TFRecordOptions(getattr(tf.python_io.TFRecordCompressionType, packed))
    with tf.python_io.TFRecordWriter(path, options) as writer:
        for i in range(3):
            writer.write(example(x=[float(i), i + 0.5], y=[*range(i)] or [0], n=[b"z\0" * i]))

    def parse(record):
        found = tf.parse_single_example(record, FEATURES)
        return found["x"], tf.sparse_tensor_to_dense(found["y"]), found["n"], found["o"]

    records = tf.data.TFRecordDataset([path], "" if packed == "NONE" else packed)
    parts = records.map(parse).padded_batch(3, ([2], [None], [], [1]))
    x, y, n, o = parts.make_one_shot_iterator().get_next()
    whole = records.batch(3).make_one_shot_iterator().get_next()
    with tf.Session() as session:
        found = session.run([x, y, n, o])
        assert found[0].tolist() == [[0, 0.5], [1, 1.5], [2, 2.5]]
        assert found[1].tolist() == [[0, 0], [0, 0], [0, 1]]
        # numpy's own type for texts would drop the zeros at their ends.
        assert found[2].tolist() == [b"", b"z\0", b"z\0z\0"]
        assert found[3].tolist() == [[-1]] * 3
        many = session.run(tf.parse_example(whole, {k: FEATURES[k] for k in "xy"}))
        assert many["x"].shape == (3, 2)
        assert many["y"].indices.tolist() == [[0, 0], [1, 0], [2, 0], [2, 1]]
        assert many["y"].dense_shape.tolist() == [3, 2]
        long = {"y": tf.FixedLenSequenceFeature([], tf.int64, True, 7)}
        rows = session.run(tf.parse_example([example(y=[1]), example(x=[0.0])], long))
        assert rows["y"].tolist() == [[1], [7]]
        given = [example(y=[1], n=[b"a"]), example(x=[0.0])]
        kinds = {"y": tf.int64, "n": tf.string}
        long = {k: tf.FixedLenSequenceFeature([], t, True) for k, t in kinds.items()}
        rows = session.run(tf.parse_example(given, long))
        assert rows["y"].tolist() == [[1], [0]] and rows["n"].tolist() == [[b"a"], [b""]]
        assert y.shape.as_list() == [None, None]


@pytest.mark.parametrize(
    "features, words",
    [
        ({"q": tf.FixedLenFeature([1], tf.int64)}, "Feature: q .* is required but could not"),
        ({"x": tf.FixedLenFeature([3], tf.float32)}, "Key: x. Can't parse .* 2 values.* has 3"),
        ({"x": tf.FixedLenFeature([2], tf.int64)}, "Key: x.  Data types don't match.*int64_list"),
        ({"x": tf.FixedLenSequenceFeature([3], tf.float32, True)}, "Key: x. .*multiple of 3"),
    ],
)
def test_examples_that_do_not_fit(features, words):
    parsed = tf.parse_single_example(example(x=[1.0, 2.0]), features)
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match=words):
        session.run(parsed)


def test_what_is_no_example_or_no_feature():
    with tf.Session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="Could not parse example"):
            session.run(tf.parse_single_example(b"\x0a\xff", FEATURES))
        indices = tf.SparseTensor([[5]], [1.0], [3])
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"outside of the shape \[3\]"):
            session.run(tf.sparse_tensor_to_dense(indices))
    for feature, words in [
        ([2], "Invalid feature x"),
        (tf.VarLenFeature(tf.int32), "dtype must be float32, int64 or string, not int32"),
        (tf.FixedLenFeature([None], tf.int64), "all sizes must be known"),
        (tf.FixedLenSequenceFeature([], tf.int64), "allow_missing must be True"),
    ]:
        with pytest.raises(ValueError, match=words):
            tf.parse_single_example(b"", {"x": feature})


def test_damaged_files_and_names(tmp_path):
    path = str(tmp_path / "a")
    good = bytes.fromhex(WRITTEN)
    for wrong in (good[:-1], good[:5], b"\1" + good[1:], good[:20] + b"!" + good[21:]):
        with open(path, "wb") as file:
            file.write(wrong)
        with pytest.raises(tf.errors.DataLossError, match="record at byte 0"):
            list(tf.python_io.tf_record_iterator(path))
    with pytest.raises(tf.errors.DataLossError, match=path):
        list(tf.python_io.tf_record_iterator(path, tf.python_io.TFRecordOptions("GZIP")))
    with pytest.raises(tf.errors.NotFoundError, match="none; No such file"):
        list(tf.python_io.tf_record_iterator(str(tmp_path / "none")))
    with pytest.raises(ValueError, match="compression_type must be .* not 'LZ4'"):
        tf.data.TFRecordDataset(path, "LZ4")


def test_counts_of_datasets_are_checked_where_they_are_written():
    numbers = tf.data.Dataset.range(5)
    for call, words in [
        (lambda: numbers.batch(0), "batch_size must be greater than zero, not 0"),
        (lambda: numbers.padded_batch(-1, []), "batch_size must be greater than zero, not -1"),
        (lambda: numbers.shuffle(0), "buffer_size must be greater than zero, not 0"),
        (lambda: numbers.shard(0, 0), "num_shards must be greater than zero, not 0"),
        (lambda: numbers.shard(2, 2), "index must be between 0 and 1, not 2"),
    ]:
        with pytest.raises(tf.errors.InvalidArgumentError, match=words):
            call()
    size = tf.placeholder(tf.int64, [])
    iterator = numbers.batch(size).make_initializable_iterator()
    with tf.Session() as session:
        session.run(iterator.initializer, {size: 0})
        with pytest.raises(tf.errors.InvalidArgumentError, match="batch_size must be greater"):
            session.run(iterator.get_next())
    records = tf.data.Dataset.from_tensors(example(y=[1]))
    sparse = records.map(lambda x: tf.parse_single_example(x, {"y": tf.VarLenFeature(tf.int64)}))
    with pytest.raises(NotImplementedError, match="batch: SparseTensor: make it dense first"):
        sparse.batch(2)

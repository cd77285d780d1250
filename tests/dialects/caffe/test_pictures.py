# SPDX-License-Identifier: Apache-2.0
"""Layers that read pictures, from databases that the package lmdb wrote and from files."""

import io

import numpy as np
import pytest
from PIL import Image

import nnl as nn
import nnl.dialects.caffe as caffe
from nnl.converters.caffe.messages import parse_text
from nnl.workspace import Workspace

lmdb = pytest.importorskip("lmdb")
RNG = np.random.RandomState(0)
PICTURES = RNG.randint(0, 256, (5, 3, 6, 8)).astype(np.uint8)


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nn.seed(1)
    with Workspace({}):
        yield


def png(picture):
    """A file's bytes: red first, as files have it."""
    file = io.BytesIO()
    Image.fromarray(picture[::-1].transpose(1, 2, 0)).save(file, "png")
    return file.getvalue()


def write(name, datums):
    with lmdb.open(name, map_size=1 << 24) as database, database.begin(write=True) as t:
        for i, d in enumerate(datums):
            t.put(f"{i:08}".encode(), d if isinstance(d, bytes) else d.SerializeToString())


def datums(encoded=False):
    made = [caffe.io.array_to_datum(x, i) for i, x in enumerate(PICTURES)]
    for d, x in zip(made, PICTURES, strict=True):
        if encoded:
            d.encoded, d.data = True, png(x)
    return made


def net(type="Data", more='source: "db" backend: LMDB', size=2, transform="", phase=caffe.TEST):
    field = {"Data": "data_param", "ImageData": "image_data_param"}[type]
    text = f'layer {{ name: "d" type: "{type}" top: "x" top: "y" {field} {{ {more} '
    text += f"batch_size: {size} }} transform_param {{ {transform} }} }}"
    return caffe.Net(parse_text("NetParameter", text, "test"), phase)


def batch(net):
    net.forward()
    return net.blobs["x"].data.copy(), net.blobs["y"].data.copy()


@pytest.mark.parametrize("encoded", (False, True))
def test_databases_are_read_around_and_around(encoded):
    write("db", datums(encoded))
    n = net()
    for k in range(5):
        x, y = batch(n)
        rows = [2 * k % 5, (2 * k + 1) % 5]
        np.testing.assert_array_equal(x, PICTURES[rows])
        np.testing.assert_array_equal(y, rows)


def test_parts_means_and_factors():
    write("db", datums())
    whole = PICTURES[:1].astype(np.float64)
    x, _ = batch(net(size=1, transform="crop_size: 4 scale: 0.5 mean_value: 7"))
    np.testing.assert_allclose(x, (whole[:, :, 1:5, 2:6] - 7) * 0.5)
    three = "mean_value: 1 mean_value: 2 mean_value: 3"
    x, _ = batch(net(size=1, transform=three))
    np.testing.assert_allclose(x, whole - np.reshape([1, 2, 3], (3, 1, 1)))
    mean = PICTURES.mean(0)[None]
    with open("mean.binaryproto", "wb") as file:
        file.write(caffe.io.array_to_blobproto(mean).SerializeToString())
    x, _ = batch(net(size=1, transform='crop_size: 5 mean_file: "mean.binaryproto"'))
    np.testing.assert_allclose(x, (whole - mean)[:, :, :5, 1:6], atol=1e-5)
    old = 'source: "db" backend: LMDB scale: 0.5 crop_size: 4'  # in the layer's own parameters
    np.testing.assert_allclose(batch(net(more=old, size=1))[0], whole[:, :, 1:5, 2:6] * 0.5)


def test_training_cuts_parts_out_anywhere_and_mirrors_every_second():
    write("db", datums()[:1])
    x, _ = batch(net(size=300, transform="crop_size: 5 mirror: true", phase=caffe.TRAIN))
    parts = {}
    for i in range(2):
        for j in range(4):
            part = PICTURES[0, :, i : i + 5, j : j + 5].astype(np.float32)
            parts[part.tobytes()] = i, j, False
            parts[part[:, :, ::-1].tobytes()] = i, j, True
    seen = [parts[row.tobytes()] for row in x]
    assert set(seen) == set(parts.values())
    assert 110 < sum(mirrored for *_, mirrored in seen) < 190


def test_pictures_of_a_list_of_files():
    for i, x in enumerate(PICTURES):
        with open(f"a {i}.png", "wb") as file:
            file.write(png(x))
    with open("list.txt", "w") as file:
        file.writelines(f"a {i}.png {i}\n" for i in range(5))
    x, y = batch(net("ImageData", 'source: "list.txt"', 5))
    np.testing.assert_array_equal(x, PICTURES)
    np.testing.assert_array_equal(y, range(5))
    x, _ = batch(net("ImageData", 'source: "list.txt" new_height: 4 new_width: 5', 1))
    assert x.shape == (1, 3, 4, 5)
    x, _ = batch(net("ImageData", 'source: "list.txt" is_color: false', 1))
    grey = Image.open("a 0.png").convert("L")
    np.testing.assert_array_equal(x[0, 0], np.asarray(grey))
    _, y = batch(net("ImageData", 'source: "list.txt" shuffle: true', 5))
    assert sorted(y) == [0, 1, 2, 3, 4]


LEARNING = """
layer { name: "d" type: "Data" top: "x" top: "t" transform_param { scale: 0.00390625 }
  data_param { source: "db" backend: LMDB batch_size: 5 } }
layer { name: "fc" type: "InnerProduct" bottom: "x" top: "y"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "a" type: "Accuracy" bottom: "y" bottom: "t" top: "a" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "t" top: "loss" }
"""


def test_a_network_learns_from_a_database():
    write("db", datums())
    param = caffe.proto.caffe_pb2.SolverParameter(base_lr=0.05, max_iter=60, test_interval=100)
    param.test_iter.append(1)
    param.net_param.CopyFrom(parse_text("NetParameter", LEARNING, "test"))
    solver = caffe.get_solver(param)
    solver.solve()
    assert solver.test_all()[0]["a"] == 1


def lines(text):
    with open("list.txt", "w") as file:
        file.write(text)


def test_what_cannot_be_read():
    list_of = 'source: "list.txt" '
    write("db", datums())
    write("none", [])
    write("torn", [b"\xff" * 9])
    write("odd", [caffe.io.array_to_datum(np.ones((1, 2, n), np.uint8)) for n in (2, 3)])
    broken = datums(True)[0]
    broken.data = broken.data[:30]
    write("broken", [broken])
    with open("db/data.mdb", "rb") as file:
        content = file.read()
    for name, kept in (("cut", content[:9000]), ("noise", b"x" * 9000)):
        with open(name, "wb") as file:
            file.write(kept)
    for source, transform, message in (
        ("nowhere", "", r"source 'nowhere': there is no such database"),
        ("none", "", "source 'none' has no records"),
        ("torn", "", "torn, record b'00000000': no Datum"),
        ("broken", "", "broken, record b'00000000': "),
        ("cut", "", "source 'cut': "),
        ("noise", "", "source 'noise': "),
        ("db", "crop_size: 9", "crop_size is 9, its pictures are 6 x 8"),
        ("db", "mean_value: 1 mean_value: 2", r"mean has the shape \(2, 1, 1\), its pictures \(3,"),
        ("db", 'mean_file: "no"', "mean_file: .*No such file"),
        ("db", 'mean_file: "no" mean_value: 1', "both mean_file and mean_value"),
    ):
        with pytest.raises(ValueError, match=f"layer 'd' .*{message}"):
            net(more=f'source: "{source}" backend: LMDB', transform=transform)
    with pytest.raises(ValueError, match="batch_size is 0"):
        net(size=0)
    with pytest.raises(ValueError, match=r"a picture has the shape \(1, 2, 3\), the first gave"):
        batch(net(more='source: "odd" backend: LMDB'))
    for text, more, message in (
        ("a.png 1", "new_height: 3", "new_height and new_width are set together"),
        ("", "", "source list.txt names no files"),
        ("a.png 1\n\nb.png", "", "list.txt, line 2: wanted a path and a label, got 'b.png'"),
        ("a.png one", "", "line 1: wanted a path and a label"),
        ("a.png 1", "", "list.txt, line 1: a.png: .*No such file"),
    ):
        lines(text)
        with pytest.raises(ValueError, match=message):
            net("ImageData", list_of + more)
    with pytest.raises(ValueError, match="source: .*No such file"):
        net("ImageData", 'source: "nolist.txt"')

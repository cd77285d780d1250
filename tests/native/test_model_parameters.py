# SPDX-License-Identifier: Apache-2.0
"""Files of parameters that C++ writes and reads: the same as Python's."""

import os
import zipfile

import h5py
import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.converters.nnp.messages import messages
from nnl.converters.weights import read_weights
from nnl.utils.save import save
from tests.native.kernels import require_library

KINDS = [".safetensors", ".h5", ".protobuf"]


def network():
    x = nn.Variable((2, 3, 6, 6))
    x.name = "x"
    with nn.parameter_scope("deep/er"):
        h = PF.batch_normalization(
            PF.convolution(x, 4, (3, 3), name="c"), name="b", batch_stat=False
        )
    return PF.affine(F.relu(h), 5, name="fc")


def file_of(path):
    """A model's file, what its parameters are, and whether they are trained."""
    nn.save_program(path, network())
    found = {k: (v.d.copy(), v.need_grad) for k, v in nn.get_parameters(grad_only=False).items()}
    return require_library().ModelFile(str(path)), found


def many(path):
    """The file of a model with more arrays than one table of HDF5 takes, and some odd ones."""
    params = {f"layer{i}/w": np.full((i % 3, 2), i, np.float32) for i in range(1, 400)}
    params |= {"one": np.float32(3).reshape(()), 'ganz ä"\\\n': np.ones(3, np.float32)}
    y = None
    for k, v in params.items():
        p = nn.Variable.from_numpy_array(v, need_grad=True)
        nn.parameter.set_parameter(k, p)
        s = F.sum(p)
        y = s if y is None else y + s
    nn.save_program(path, y)
    return require_library().ModelFile(str(path)), {k: (v, True) for k, v in params.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [file_of, many])
def test_parameters_are_read_by_nnl(make, kind, tmp_path):
    file, want = make(tmp_path / "a.nnlp")
    path = tmp_path / f"p{kind}"
    file.save_parameters(str(path))
    assert sorted(os.listdir(tmp_path)) == ["a.nnlp", path.name]
    if kind == ".safetensors":
        found = {k: (v, want[k][1]) for k, v in read_weights(path).items()}
    else:
        nn.clear_parameters()
        nn.load_parameters(path)
        got = nn.get_parameters(grad_only=False)
        found = {k: (v.d, v.need_grad) for k, v in got.items()}
    assert set(found) == set(want)
    for k, (value, need_grad) in want.items():
        assert found[k][1] == need_grad
        np.testing.assert_array_equal(found[k][0], value)
        assert found[k][0].shape == value.shape


def test_h5py_reads_what_c_plus_plus_writes(tmp_path):
    file, want = many(tmp_path / "a.nnlp")
    file.save_parameters(str(tmp_path / "p.h5"))
    with h5py.File(tmp_path / "p.h5", "r") as f:
        names = []
        f.visititems(lambda name, x: names.append(name) if isinstance(x, h5py.Dataset) else None)
        assert set(names) == set(want)
        assert sorted(f[k].attrs["index"] for k in names) == list(range(len(want)))
        for k, (value, _) in want.items():
            np.testing.assert_array_equal(f[k][()], value)
            assert f[k].attrs["need_grad"] == np.True_ and f[k].dtype == np.float32


def as_text(path):
    """A .protobuf file in text form."""
    from google.protobuf import text_format

    message = messages()["NNablaProtoBuf"]()
    message.ParseFromString(path.read_bytes())
    return text_format.MessageToString(message)


@pytest.mark.parametrize("kind", [*KINDS, ".npz", ".nntxt"])
def test_parameters_are_loaded(kind, tmp_path):
    file, want = file_of(tmp_path / "a.nnlp")
    path = str(tmp_path / f"p{kind}")
    if kind == ".safetensors":
        file.save_parameters(path)
    elif kind == ".npz":
        np.savez_compressed(path, **{k: v for k, (v, _) in want.items()})
    elif kind == ".nntxt":
        nn.save_parameters(tmp_path / "p.protobuf")
        (tmp_path / "p.nntxt").write_text(as_text(tmp_path / "p.protobuf"))
    else:
        nn.save_parameters(path)
    nn.clear_parameters()
    other, different = file_of(tmp_path / "b.nnlp")
    assert any((different[k][0] != want[k][0]).any() for k in want)
    lib = require_library()
    x = np.random.default_rng(0).normal(size=(2, 3, 6, 6)).astype(np.float32)
    model, wanted = lib.Model(other), lib.Model(file).run({"x": x})
    assert model.run({"x": x}) != wanted
    other.load_parameters(path)
    for k, (value, _) in want.items():
        assert other.parameter(k) == value.tobytes()
    assert model.run({"x": x}) == wanted  # packed weights too


@pytest.mark.parametrize("kind", [".h5", ".protobuf"])
@pytest.mark.parametrize("packed", [None, 0, 1, 6, 9])
def test_archives_are_read(kind, packed, tmp_path):
    """Of nnl, and of zlib's at every level; what is small and what repeats is packed otherwise."""
    rng = np.random.default_rng(0)
    values = {
        "small": np.float32([1, 2]),
        "zeros": np.zeros(300_000, np.float32),
        "noise": rng.normal(size=70_000).astype(np.float32),
        "few": rng.integers(0, 9, 90_000).astype(np.float32),
    }
    y = None
    for k, v in values.items():
        nn.parameter.set_parameter(k, p := nn.Variable.from_numpy_array(v, need_grad=True))
        y = F.sum(p) if y is None else y + F.sum(p)
    path = tmp_path / "a.nnp"
    if packed is None:
        network = {"name": "n", "batch_size": 1, "outputs": {"y": y}, "names": {}}
        save(str(path), {"networks": [network]})
    else:
        nn.save_parameters(tmp_path / f"p{kind}")
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=packed) as archive:
            archive.writestr("network.nntxt", "")
            archive.write(tmp_path / f"p{kind}", f"parameter{kind}")
            archive.comment = b"PK five six"
    for p in nn.get_parameters().values():
        p.data.zero()
    nn.save_program(tmp_path / "a.nnlp", y)
    file = require_library().ModelFile(str(tmp_path / "a.nnlp"))
    file.load_parameters(str(path))
    for k, v in values.items():
        assert file.parameter(k) == v.tobytes(), k


def test_damaged_archives_are_told(tmp_path):
    file, _ = file_of(tmp_path / "a.nnlp")
    nn.save_parameters(tmp_path / "p.h5")
    path = tmp_path / "p.nnp"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "p.h5", "p.h5")
    good = path.read_bytes()
    for at, text in ((60, "'p.h5'"), (len(good) - 6, "archive|directory")):
        path.write_bytes(good[:at] + bytes([good[at] ^ 64]) + good[at + 1 :])
        with pytest.raises(ValueError, match=f"p.nnp: .*({text})"):
            file.load_parameters(str(path))
    path.write_bytes(good[:-30])
    with pytest.raises(ValueError, match="p.nnp: it is no zip archive, or cut off"):
        file.load_parameters(str(path))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.write(tmp_path / "p.h5", "p.h5")
    with pytest.raises(ValueError, match="'p.h5' is packed in a way that is not read"):
        file.load_parameters(str(path))


@pytest.mark.parametrize(
    "value,text",
    [
        (np.ones((2, 3), order="F"), "'w' lies in memory column by column"),
        (np.array(["a"]), "'w' holds '<U1', wanted numbers"),
        (np.ones(2, ">f4"), "'w' holds '>f4', wanted numbers"),
        (np.ones(2, "f4,i4"), "'w' holds .*, wanted numbers"),
        (np.ones(3, np.float64), r"'w' is float64\[3\], .*a.nnlp has float32\[2\]"),
    ],
)
def test_other_arrays_of_numpy_are_told(value, text, tmp_path):
    nn.parameter.set_parameter("w", p := nn.Variable.from_numpy_array(np.ones(2, "f"), True))
    nn.save_program(tmp_path / "a.nnlp", p * 2)
    file = require_library().ModelFile(str(tmp_path / "a.nnlp"))
    path = tmp_path / "p.npz"
    np.savez(path, w=value)
    with pytest.raises(ValueError, match=f"p.npz: {text}"):
        file.load_parameters(str(path))


def test_damaged_arrays_of_numpy_are_told(tmp_path):
    nn.parameter.set_parameter("w", p := nn.Variable.from_numpy_array(np.ones(2, "f"), True))
    nn.save_program(tmp_path / "a.nnlp", p * 2)
    file = require_library().ModelFile(str(tmp_path / "a.nnlp"))
    path, member = tmp_path / "p.npz", tmp_path / "w.npy"
    np.save(member, np.ones(2, np.float64))
    good, rng = member.read_bytes(), np.random.default_rng(0)

    def load(content):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("w.npy", content)
        file.load_parameters(str(path))

    load(good)
    assert file.parameter("w") == np.ones(2, np.float32).tobytes()
    for _ in range(200):
        at = int(rng.integers(80))
        try:
            load(good[:at] + bytes([int(rng.integers(256))]) + good[at + 1 :])
        except ValueError as e:
            assert "p.npz" in str(e)
    for content in (good[:-1], good[:100], good[:9], b""):
        with pytest.raises(ValueError, match="p.npz: 'w' is no array of numpy, or damaged"):
            load(content)


def test_what_does_not_fit_is_told(tmp_path):
    file, want = file_of(tmp_path / "a.nnlp")
    with pytest.raises(ValueError, match=r"p.npz: files of parameters are .safetensors, .h5 and"):
        file.save_parameters(str(tmp_path / "p.npz"))
    with pytest.raises(ValueError, match=r"files of parameters are .safetensors, .h5, .protobuf"):
        file.load_parameters(__file__)
    with pytest.raises(ValueError, match=r"no/p.h5: cannot be written: No such file or directory"):
        file.save_parameters(str(tmp_path / "no/p.h5"))
    nn.clear_parameters()
    PF.affine(nn.Variable((2, 3)), 5, name="fc")
    nn.save_parameters(tmp_path / "p.h5")
    before = file.parameter("fc/affine/b")
    with pytest.raises(ValueError, match=r"p.h5: 'fc/affine/W' is float32\[3, 5\], .*a.nnlp has"):
        file.load_parameters(str(tmp_path / "p.h5"))
    assert file.parameter("fc/affine/b") == before
    nn.clear_parameters()
    PF.affine(nn.Variable((2, 3)), 5, name="other")
    nn.save_parameters(tmp_path / "p.h5")
    with pytest.raises(ValueError, match=r"p.h5 has no parameter of .*a.nnlp"):
        file.load_parameters(str(tmp_path / "p.h5"))


def test_a_save_that_fails_leaves_the_old_file(tmp_path):
    lib = require_library()
    nn.parameter.set_parameter(".", p := nn.Variable.from_numpy_array(np.ones(2, "f"), True))
    nn.save_program(tmp_path / "a.nnlp", p * 2)
    (tmp_path / "p.h5").write_text("old")
    with pytest.raises(ValueError, match="p.h5: the name '.' is no path"):
        lib.ModelFile(str(tmp_path / "a.nnlp")).save_parameters(str(tmp_path / "p.h5"))
    assert (tmp_path / "p.h5").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["a.nnlp", "p.h5"]

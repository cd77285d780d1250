# SPDX-License-Identifier: Apache-2.0
"""Folders of weights as Hugging Face's libraries write them, beside safetensors and torch."""

import json

import ml_dtypes
import numpy as np
import pytest

from nnl.converters.weights.folder import read_folder, write_folder

torch = pytest.importorskip("torch")
stored = pytest.importorskip("safetensors.torch")

WHERE = "reader"
BFLOAT = np.dtype(ml_dtypes.bfloat16)


def tensors():
    generator = torch.Generator().manual_seed(0)
    kinds = {"a.w": torch.float32, "b.w": torch.bfloat16, "c.w": torch.float16}
    found = {k: torch.randn(3, 4, generator=generator).to(t) for k, t in kinds.items()}
    return found | {"d": torch.tensor(2.5), "e": torch.zeros(0, 4)}


def check(found, wanted):
    assert sorted(found) == sorted(wanted)
    for name, t in wanted.items():
        assert found[name].dtype.name == str(t.dtype).removeprefix("torch.")
        np.testing.assert_array_equal(found[name].astype(np.float32), t.float().numpy())


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_types_are_kept(name, tmp_path):
    save = torch.save if name.endswith("bin") else stored.save_file
    save(tensors(), tmp_path / name)
    check(read_folder(tmp_path, WHERE), tensors())


def test_arrays_are_the_memory_of_the_file_and_writing_does_not_change_it(tmp_path):
    stored.save_file(tensors(), tmp_path / "model.safetensors")
    before = (tmp_path / "model.safetensors").read_bytes()
    found = read_folder(tmp_path, WHERE)
    assert all(not a.flags.owndata for a in found.values() if a.size)
    found["a.w"][...] = 7
    assert (tmp_path / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("most", [10**9, 30])
def test_what_is_written_is_read_by_safetensors_in_one_file_or_several(most, tmp_path):
    arrays = {"a": np.arange(6.0, dtype=np.float32), "b": np.ones((2, 3), BFLOAT)}
    write_folder(tmp_path, arrays, most)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == (1 if most > 30 else 2)
    found = {k: v for f in files for k, v in stored.load_file(f).items()}
    assert found["b"].dtype == torch.bfloat16 and found["a"].tolist() == list(range(6))
    check(read_folder(tmp_path, WHERE), found)


def sharded(folder, change=None):
    stored.save_file({"a": torch.zeros(2)}, folder / "one.safetensors")
    stored.save_file({"b": torch.ones(2)}, folder / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    if change:
        change(index["weight_map"])
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_several_files_are_read_by_their_index(tmp_path):
    sharded(tmp_path)
    check(read_folder(tmp_path, WHERE), {"a": torch.zeros(2), "b": torch.ones(2)})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: m.update(c="two.safetensors"), "names 'c', which two.safetensors lacks"),
        (lambda m: m.update(c="three.safetensors"), "'three.safetensors', which is not there"),
        (lambda m: m.update(c="../x"), r"names the file '../x', which is not there"),
        (lambda m: m.pop("b"), None),
        (lambda m: m.update(b="one.safetensors"), "names 'b', which one.safetensors lacks"),
        (lambda m: m.update(b=3), "has no weight_map of names and files"),
    ],
)
def test_an_index_that_does_not_fit_is_named(change, text, tmp_path):
    sharded(tmp_path, change)
    if text is None:  # a file that is not named is not read
        assert sorted(read_folder(tmp_path, WHERE)) == ["a"]
        return
    with pytest.raises(ValueError, match=text):
        read_folder(tmp_path, WHERE)


def test_a_tensor_that_the_index_does_not_know_is_named(tmp_path):
    sharded(tmp_path)
    stored.save_file({"b": torch.ones(2), "c": torch.ones(2)}, tmp_path / "two.safetensors")
    with pytest.raises(ValueError, match="says nothing of 'c', which two.safetensors has"):
        read_folder(tmp_path, WHERE)


def test_a_folder_without_weights_is_named(tmp_path):
    with pytest.raises(ValueError, match="there is neither model.safetensors nor pytorch_model"):
        read_folder(tmp_path, WHERE)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="the file is empty"):
        read_folder(tmp_path, WHERE)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text("[")
    with pytest.raises(ValueError, match="index.json is no JSON"):
        read_folder(tmp_path, WHERE)
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(ValueError, match="holds list, wanted an object"):
        read_folder(tmp_path, WHERE)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_damaged_files_are_read_or_named(name, tmp_path):
    path, rng = tmp_path / name, np.random.default_rng(0)
    (torch.save if name.endswith("bin") else stored.save_file)(tensors(), path)
    whole = path.read_bytes()
    refused = 0
    for trial in range(200):
        data = bytearray(whole)
        if trial % 2:
            del data[rng.integers(len(data)) :]
        else:
            for at in rng.integers(0, min(len(data), 1200), 1 + trial % 3):
                data[at] = rng.integers(256)
        path.write_bytes(bytes(data))
        try:
            read_folder(tmp_path, WHERE)
        except ValueError as e:
            assert name in str(e)
            refused += 1
    assert refused > 110  # every truncated one, and more

# SPDX-License-Identifier: Apache-2.0
"""The generative examples learn, go on where they were, and leave files that others run."""

import importlib
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import nnl as nn

pytest.importorskip("sklearn")
pytest.importorskip("skimage")
Image = pytest.importorskip("PIL.Image")

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "generative"
# class, the loss or measure that falls, and the share of its first values that the last are below
FAMILIES = {
    "diffusion": ("Diffusion", "loss", 0.6),
    "flow_matching": ("FlowMatching", "loss", 0.6),
    "dit": ("DigitsDiT", "loss", 0.8),
    "consistency": ("Consistency", "FID", 0.7),
    "latent_diffusion": ("LatentDiffusion", "error", 0.7),
    "progressive_gan": ("ProgressiveGAN", "FID", 0.9),
    "vq_gan": ("VQGAN", "error", 0.9),
    "pix2pix": ("Pix2Pix", "L1", 0.9),
    "stargan": ("StarGAN", "back", 0.95),
    "cyclegan": ("CycleGAN", "back", 0.95),
    "instagan": ("InstaGAN", "back", 0.95),
    "reenactgan": ("ReenactGAN", "L1", 0.9),
    "tecogan": ("TecoGAN", "L1", 0.9),
    "esrgan": ("ESRGAN", "L1", 0.7),
    "stylegan2": ("StyleGAN", "FID", 0.9),
}
QUICK = ("dit", "esrgan")  # one of each kind; the others are run by make test-all


def module(name):
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


def started(name, out, seed=0):
    return module("common").Run(getattr(module(name), FAMILIES[name][0]), "tiny", out, seed)


@pytest.fixture(autouse=True)
def own_modules():
    """`common` is also the name of a module of examples/programs."""
    names = ("common", "pictures", "features", *FAMILIES)
    kept = {n: sys.modules.pop(n) for n in names if n in sys.modules}
    yield
    for n in names:
        sys.modules.pop(n, None)
    sys.modules.update(kept)


def families(quick=QUICK):
    marks = {n: [] if n in quick else [pytest.mark.long] for n in FAMILIES}
    return [pytest.param(n, marks=m) for n, m in marks.items()]


@pytest.mark.parametrize("name", families(("esrgan",)))
def test_the_family_learns(name, tmp_path):
    _, loss, share = FAMILIES[name]
    run = started(name, tmp_path)
    before = run.family.measure() if loss == "FID" else {}
    losses = run.train(run.family.size["steps"])
    assert all(np.isfinite(v).all() for v in losses.values())
    found = run.family.measure()
    assert np.isfinite(list(found.values())).all()
    if loss in found:
        assert found[loss] < share * before[loss]
        return
    # the second half of vq_gan's steps are against a discriminator
    values = losses[loss][: len(losses[loss]) // 2] if name == "vq_gan" else losses[loss]
    n = max(len(values) // 5, 1)
    assert np.mean(values[-n:]) < share * np.mean(values[:n]), values


@pytest.mark.parametrize("name", families())
def test_a_run_goes_on_as_if_it_had_not_stopped(name, tmp_path):
    def parameters(run):
        run.save()  # also what is kept beside the parameters is among them then
        return {k: v.d.copy() for k, v in nn.get_parameters(grad_only=False).items()}

    run = started(name, tmp_path / "none")
    run.train(6)
    whole = parameters(run)
    run = started(name, tmp_path)
    run.train(4, save_every=4)
    assert (tmp_path / "step000004.png").is_file()
    run = started(name, tmp_path)
    assert run.step == 4
    run.train(6)
    for key, value in parameters(run).items():
        np.testing.assert_allclose(value, whole[key], rtol=1e-4, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", families(("dit",)))
def test_what_is_exported_runs_elsewhere_and_gives_the_same(name, tmp_path, monkeypatch):
    onnxruntime = pytest.importorskip("onnxruntime")
    if name == "pix2pix":  # its dropout stays on
        of = module(name)
        monkeypatch.setattr(of, "pix2pix_generator", partial(of.pix2pix_generator, dropout=0))
    run = started(name, tmp_path)
    run.train(2)
    paths = run.export(tmp_path)
    assert [p.suffix for p in paths] == [".nnp", ".onnx", ".nnlp"]
    session = onnxruntime.InferenceSession(str(paths[1]), providers=["CPUExecutionProvider"])
    rng, program = np.random.default_rng(0), nn.load_program(paths[2])
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
    given = {
        i.name: rng.normal(size=i.shape).astype(types[i.type])
        if types[i.type] is np.float32
        else rng.integers(0, 3, i.shape).astype(types[i.type])
        for i in session.get_inputs()
    }
    theirs = session.run(None, given)[0]
    ours = next(iter(program.run(**given).values()))
    np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-3 * np.abs(theirs).max())
    if name == "pix2pix":  # samples are normalised as files are
        with run.average.instead():
            made = run.family._generate(nn.Variable.from_numpy_array(next(iter(given.values()))))
        np.testing.assert_allclose(made.d, theirs, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("stylegan2", {"mix": 1}),
        ("stylegan2", {"interpolate": 1, "truncation": 0.5}),
        pytest.param("diffusion", {"interpolate": 1}, marks=pytest.mark.long),
        pytest.param("diffusion", {"class": 3, "guidance": 2.0}, marks=pytest.mark.long),
    ],
)
def test_samples_follow_the_seed_and_the_options(name, options, tmp_path):
    run = started(name, tmp_path)
    run.train(2)
    first, again, other = (run.family.sample(9, s, **options) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    if "mix" in options:  # rows share the coarse layers' noise, columns the fine ones'
        plain = run.family.sample(9, 1)
        np.testing.assert_allclose(first[[0, 4, 8]][0], plain[0], atol=1e-4)


def picture(path, size):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size, size, 3), 90, np.uint8)).save(path)


def test_folders_that_are_of_no_use_are_named(tmp_path):
    pictures = module("pictures")
    with pytest.raises(ValueError, match=r"0 picture\(s\), wanted at least two"):
        pictures.folder(tmp_path, 16)
    picture(tmp_path / "a" / "one.png", 32)
    with pytest.raises(ValueError, match=r"1 picture\(s\), wanted at least two"):
        pictures.folder(tmp_path, 16)
    picture(tmp_path / "a" / "two.png", 20)
    with pytest.raises(
        ValueError, match=r"two.png has \(20, 20\) pixels, wanted \(32, 32\) as .*one"
    ):
        pictures.folder(tmp_path, 16)
    picture(tmp_path / "a" / "two.png", 32)
    assert pictures.folder(tmp_path, 16).shape == (2, 3, 16, 16)
    with pytest.raises(ValueError, match=r"one.png has \(32, 32\) pixels, wanted at least 48"):
        pictures.folder(tmp_path, 48)
    with pytest.raises(ValueError, match="photographs have no 256 x 256 pixels: --data wants a fo"):
        pictures.pictures(None, 256)
    picture(tmp_path / "b" / "one.png", 32)
    picture(tmp_path / "b" / "other.jpg", 32)
    with pytest.raises(ValueError, match="a has no picture other, which is in the other folder"):
        pictures.pairs(tmp_path, 16)
    (tmp_path / "b" / "other.jpg").rename(tmp_path / "b" / "two.jpg")
    draw = pictures.pairs(tmp_path, 16)
    assert draw(3, np.random.default_rng(0), held_out=True).shape == (3, 2, 3, 16, 16)
    (tmp_path / "a" / "two.png").write_bytes(b"none")
    with pytest.raises(ValueError, match=r"two.png is no picture: "):
        pictures.folder(tmp_path, 16)


@pytest.mark.parametrize("name", ["stargan", "instagan", "tecogan", "reenactgan"])
def test_families_with_data_of_their_own_refuse_a_folder(name, tmp_path):
    make = getattr(module(name), FAMILIES[name][0])
    with pytest.raises(ValueError, match=f"{name} .*: --data is of no use"):
        make(make.SIZES["tiny"], tmp_path)


def command(*args):
    done = subprocess.run(
        [sys.executable, *map(str, args)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(FOLDER.parent.parent)},
    )
    return done


@pytest.mark.long
def test_the_command_names_what_is_wrong_before_it_trains(tmp_path):
    script = FOLDER / "dit.py"
    for args, text in (
        (("train", "--steps", "0"), "--steps is 0, wanted at least 1"),
        (("sample",), "there is no .*checkpoint.safetensors: train first"),
        (("train", "--size", "paper"), "--size paper wants --data, a folder of pictures"),
    ):
        done = command(script, *args, "--out", tmp_path)
        assert done.returncode == 2 and re.search(text, done.stderr), done.stderr
    done = command(script, "train", "--size", "tiny", "--steps", "2", "--out", tmp_path)
    assert done.returncode == 0 and '"FID": ' in done.stdout, done.stderr
    done = command(script, "sample", "--size", "tiny", "--count", "3", "--out", tmp_path)
    assert (tmp_path / "samples0.png").is_file() and "samples0.png" in done.stdout, done.stderr
    other = FOLDER / "diffusion.py"
    done = command(other, "train", "--size", "tiny", "--out", tmp_path)
    assert done.returncode == 2 and re.search(
        "checkpoint.safetensors: it has no .*: it is of another network", done.stderr
    )


def test_scripts_are_short():
    lengths = {p.name: len(p.read_text().splitlines()) for p in FOLDER.glob("*.py")}
    assert {name: n for name, n in lengths.items() if n > 250} == {}

# SPDX-License-Identifier: Apache-2.0
"""The loss, the mixing of pictures, what decays, and what options mean."""

from types import SimpleNamespace

import numpy as np
import pytest

import nnl as nn
from nnl import models as M
from nnl.data.images import open_images
from nnl.ext_utils import get_extension_context


def test_the_loss_is_that_of_smoothed_and_mixed_labels(script):
    rng = np.random.default_rng(0)
    y, label = rng.normal(size=(4, 6)), np.array([[2], [0], [5], [2]])
    share = rng.integers(0, 2, (1, 1, 3, 3)).astype(np.float32)
    arrays = (y.astype(np.float32), label.astype(np.int32), share)
    variables = [nn.Variable.from_numpy_array(a) for a in arrays]
    targets = np.eye(6)[label[:, 0]]
    targets = share.mean() * targets + (1 - share.mean()) * targets[::-1]
    targets = 0.9 * targets + 0.1 / 6
    logs = y - np.log(np.exp(y).sum(1, keepdims=True))
    loss = script.step.cross_entropy(*variables, 6, 0.1)
    loss.forward()
    np.testing.assert_allclose(loss.d, -(targets * logs).sum(1).mean(), rtol=1e-5)
    plain = script.step.cross_entropy(*variables[:2], None, 6, 0.0)
    plain.forward()
    np.testing.assert_allclose(plain.d, -logs[np.arange(4), label[:, 0]].mean(), rtol=1e-5)


def test_mixup_fades_and_cutmix_cuts(script):
    def drawn(mixup, cutmix, number):
        return script.step.mixing(
            SimpleNamespace(size=8, mixup=mixup, cutmix=cutmix), (0, 0, number, 0)
        )

    faded = [drawn(0.4, 0.0, i) for i in range(200)]
    assert all(np.ptp(m) == 0 and 0 <= m[0, 0, 0, 0] <= 1 for m in faded)
    cut = [drawn(0.0, 1.0, i) for i in range(200)]
    assert all(set(np.unique(m)) <= {0.0, 1.0} for m in cut)
    assert any(0 < m.mean() < 1 for m in cut)
    for m in cut:  # what is cut is one rectangle
        rows, columns = np.nonzero(m[0, 0] == 0)
        if rows.size:
            assert rows.size == (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
    both = [drawn(0.4, 1.0, i) for i in range(200)]
    assert 60 < sum(set(np.unique(m)) <= {0.0, 1.0} for m in both) < 140
    np.testing.assert_array_equal(drawn(0.4, 1.0, 7), drawn(0.4, 1.0, 7))


def test_only_weights_decay_unless_all_are_wanted_to(script):
    parameters = {
        name: nn.Variable((2,), need_grad=True)
        for name in ("stem/conv/W", "stem/bn/gamma", "stem/bn/beta", "classifier/affine/b")
    }
    for solver in script.options.SOLVERS:
        options = SimpleNamespace(solver=solver, momentum=0.9, decay_all=False)
        first, second = script.step.solvers_of(options, 0.1, parameters)
        assert list(first.get_parameters()) == ["stem/conv/W"]
        assert list(second.get_parameters()) == list(parameters)[1:]
        assert type(second).__name__ == {"lars": "Momentum"}.get(solver, type(first).__name__)
    options.decay_all = True
    first, second = script.step.solvers_of(options, 0.1, parameters)
    assert list(first.get_parameters()) == list(parameters) and not second.get_parameters()


@pytest.mark.parametrize(("name", "last", "blocks"), [("resnet18", 2, 8), ("se_resnet50", 3, 16)])
def test_blocks_of_resnets_begin_as_their_shortcuts(script, name, last, blocks):
    M.build(name, nn.Variable((1, 3, 32, 32)), num_classes=2)
    parameters = script.step.network_parameters()
    script.step.close_branches(parameters)
    gammas = {k: v.d for k, v in parameters.items() if k.endswith("bn/gamma")}
    closed = [k for k, g in gammas.items() if not g.any()]
    assert len(closed) == blocks and all(k.endswith(f"/conv{last}/bn/gamma") for k in closed)
    assert all((g == 1).all() for k, g in gammas.items() if k not in closed)


def test_top_1_and_top_5_leave_out_what_has_no_picture(script):
    scores = np.array([[0, 1, 2, 3, 4, 5, 6.0]] * 4)
    labels = np.array([[6], [2], [1], [-1]])
    assert script.step.right(scores, labels).tolist() == [1, 2, 3]
    assert script.step.right(scores[:, :3], np.array([[2], [0], [1], [-1]])).tolist() == [1, 3, 3]


def test_what_is_given_is_stronger_than_the_recipe(script):
    parse = script.options.parse
    options = parse(["--engine", "synthetic", "--network", "mobilenet_v3_small"])
    assert (options.recipe, options.solver, options.epochs) == ("mobilenet", "rmsprop", 300)
    options = parse(["--engine", "synthetic", "--network", "efficientnet_b1", "--epochs", "7"])
    assert (options.recipe, options.epochs, options.size) == ("efficientnet", 7, 240)
    options = parse(["--engine", "synthetic", "--recipe", "resnet_lars", "--solver", "sgd"])
    assert (options.network, options.solver, options.weight_decay) == ("resnet50", "sgd", 5e-5)


WRONG = {
    "--data is missing: a folder with train and val; or --engine synthetic": "",
    "--epochs is 0, wanted at least 1": "--data x --epochs 0",
    "--smoothing is 1.0, wanted a number in [0, 1)": "--data x --smoothing 1",
    "--learning-rate is nan, wanted more than 0": "--data x --learning-rate nan",
    "--size is 16, wanted at least 32": "--data x --size 16",
    "--dropout is 0.5, and resnet50 has none": "--data x --dropout 0.5",
}


@pytest.mark.parametrize("text", WRONG)
def test_options_out_of_their_range_are_refused(script, text, capsys):
    with pytest.raises(SystemExit, match="2"):
        script.options.parse(WRONG[text].split())
    assert text in capsys.readouterr().err


ALONE = SimpleNamespace(size=1, rank=0, all_reduce_callback=lambda *a, **k: None)


@pytest.mark.parametrize("types", ["float", "half"])
def test_all_gradients_together_are_clipped(script, types):
    options = script.options.parse(
        "--engine synthetic --network tiny --batch-size 4 --clip-norm 0.01 --weight-decay 0 "
        f"--type-config {types}".split()
    )
    with nn.context_scope(get_extension_context("numpy", type_config=types)):
        training = script.step.Training(options, ALONE, 3, 0.5)
        before = {k: v.d.copy() for k, v in nn.get_parameters().items()}
        for solver in training.solvers:
            solver.set_learning_rate(0.5)
        x = np.random.default_rng(0).integers(0, 255, (4, 32, 32, 3)).astype(np.uint8)
        training(x, np.array([[0], [1], [2], [0]], np.int32), (0, 0, 0, 0), 0)
        squares = [((v.d - before[k]) ** 2).sum() for k, v in nn.get_parameters().items()]
    assert np.sqrt(sum(squares)) == pytest.approx(0.5 * 0.01, rel=1e-2)
    assert training.scale.value.data == (1.0 if types == "float" else script.step.FIRST_LOSS_SCALE)


@pytest.mark.parametrize("mode", ["static", "compile", "coexecute"])
def test_pictures_lie_where_the_workers_wrote_them(script, tmp_path, mode):
    image = pytest.importorskip("PIL.Image")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(4):
            image.new("RGB", (50, 40), (i, 9, 0)).save(tmp_path / name / f"{i}.jpg")
    options = script.options.parse(
        f"--engine synthetic --network tiny --batch-size 4 --mode {mode}".split()
    )
    training = script.step.Training(options, ALONE, 2, 0.1)
    with open_images(str(tmp_path), 4, 32, workers=1) as pictures:
        for i, (x, label) in enumerate(pictures.epoch(0)):
            training(x, label, (0, 0, i, 0), 0)
            (buffer,) = training.picture.data.bufs.values()
            assert np.shares_memory(buffer, x) and np.shares_memory(buffer, pictures._engine.slots)


def test_losses_fall_alike_in_all_modes(script):
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, (8, 1)).astype(np.int32)
    x = (rng.integers(0, 100, (8, 32, 32, 3)) + 70 * label[:, :, None, None]).astype(np.uint8)
    curves = {}
    for mode in script.options.MODES:
        nn.clear_parameters()
        nn.seed(1)
        options = script.options.parse(
            f"--engine synthetic --network tiny --batch-size 8 --mode {mode} --dropout 0.1".split()
        )
        training = script.step.Training(options, ALONE, 3, 0.1)
        for solver in training.solvers:
            solver.set_learning_rate(0.1)
        curves[mode] = [float(training(x, label, (0, 0, i, 0), 0).d) for i in range(25)]
        assert np.mean(curves[mode][-5:]) < 0.8 * curves[mode][0], mode
    for mode in script.options.MODES:
        np.testing.assert_allclose(curves[mode][:5], curves["static"][:5], rtol=1e-3)

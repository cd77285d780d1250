# SPDX-License-Identifier: Apache-2.0
"""load_torch_weights: names of torchvision and timm, and what is refused."""

import numpy as np
import pytest

import nnl as nn
from nnl import models as M
from nnl.core.arrays.spec import ShapeError

# What the same network is called there; None: there is none.
TORCHVISION = {
    "resnext50": "resnext50_32x4d",
    **dict.fromkeys(("se_resnet50", "se_resnext50")),
}
TIMM = {
    "resnext50": "resnext50_32x4d",
    "se_resnet50": "seresnet50",
    "se_resnext50": "seresnext50_32x4d",
    "mobilenet_v3_small": "mobilenetv3_small_100",
    "mobilenet_v3_large": "mobilenetv3_large_100",
}
QUICK = ("resnet18", "se_resnet50", "mobilenet_v3_small", "efficientnet_b0")


def cases():
    for name in M.NETWORKS:
        marks = () if name in QUICK else pytest.mark.long
        for library in ("torchvision", "timm"):
            if library == "timm" or TORCHVISION.get(name, name):
                yield pytest.param(library, name, marks=marks)


@pytest.mark.parametrize(("library", "name"), list(cases()))
def test_scores_are_those_of_the_network_that_the_weights_are_from(library, name):
    torch = pytest.importorskip("torch")
    package = pytest.importorskip(library)
    from tests.models.against_torch import assert_close, draw_statistics

    torch.manual_seed(0)
    if library == "timm":
        network = package.create_model(TIMM.get(name, name))
    else:
        network = getattr(package.models, TORCHVISION.get(name, name))()
    draw_statistics(network.eval())
    x = np.random.default_rng(0).normal(size=(2, 3, 64, 64)).astype(np.float32)
    y = M.build(name, nn.Variable.from_numpy_array(x), test=True)
    M.load_torch_weights(network.state_dict())
    y.forward()
    with torch.no_grad():
        assert_close(y.d, network(torch.tensor(x)), 1e-5)


def resnet18(classes=1000, seed=0):
    """A state_dict with the names and shapes that torchvision documents, written down by hand."""
    rng = np.random.default_rng(seed)
    found = {}

    def conv_bn(conv, bn, outputs, inputs, kernel):
        found[f"{conv}.weight"] = rng.normal(size=(outputs, inputs, kernel, kernel))
        for leaf in ("weight", "bias", "running_mean", "running_var"):
            found[f"{bn}.{leaf}"] = rng.uniform(0.5, 1.5, outputs)
        found[f"{bn}.num_batches_tracked"] = np.array(3)

    conv_bn("conv1", "bn1", 64, 3, 7)
    inputs = 64
    for i, width in enumerate((64, 128, 256, 512), 1):
        for j in range(2):
            block = f"layer{i}.{j}"
            conv_bn(f"{block}.conv1", f"{block}.bn1", width, inputs, 3)
            conv_bn(f"{block}.conv2", f"{block}.bn2", width, width, 3)
            if inputs != width:
                conv_bn(f"{block}.downsample.0", f"{block}.downsample.1", width, inputs, 1)
            inputs = width
    found["fc.weight"], found["fc.bias"] = rng.normal(size=(classes, 512)), rng.normal(size=classes)
    return {k: v.astype(np.float32) for k, v in found.items()}


def build(classes=1000):
    M.build("resnet18", nn.Variable((1, 3, 32, 32)), num_classes=classes, test=True)
    return nn.get_parameters(grad_only=False)


def assert_loaded(p, weights):
    np.testing.assert_array_equal(p["stem/conv/W"].d, weights["conv1.weight"])
    names = {"gamma": "weight", "beta": "bias", "mean": "running_mean", "var": "running_var"}
    for ours, theirs in names.items():
        v = p[f"stage3/block1/shortcut/bn/{ours}"].d
        np.testing.assert_array_equal(v.ravel(), weights[f"layer3.0.downsample.1.{theirs}"])
    np.testing.assert_array_equal(
        p["stage4/block2/conv2/conv/W"].d, weights["layer4.1.conv2.weight"]
    )


def test_the_order_of_the_names_and_what_is_before_all_of_them_do_not_matter():
    weights, p = resnet18(), build()
    shuffled = {f"state_dict.module.{k}": weights[k] for k in sorted(weights)}
    M.load_torch_weights({"epoch": np.array(90), **shuffled})
    assert_loaded(p, weights)
    np.testing.assert_array_equal(p["classifier/affine/W"].d, weights["fc.weight"].T)


@pytest.mark.parametrize("extension", ["pth", "old.pth", "safetensors", "npz"])
def test_files_are_read(tmp_path, extension):
    weights, path = resnet18(), tmp_path / f"resnet18.{extension}"
    if extension.endswith("pth"):
        torch = pytest.importorskip("torch")
        tensors = {k: torch.tensor(v) for k, v in weights.items()}
        torch.save(tensors, path, _use_new_zipfile_serialization=extension == "pth")
    elif extension == "safetensors":
        pytest.importorskip("safetensors.numpy").save_file(weights, path)
    else:
        np.savez(path, **weights)
    p = build()
    M.load_torch_weights(path)
    assert_loaded(p, weights)


def test_old_files_run_no_code_and_may_be_damaged(tmp_path):
    build()
    marker, path = tmp_path / "marker", tmp_path / "hostile.pth"
    call = f"cposix\nsystem\n(S'touch {marker}'\ntR."
    for content in (call.encode(), b"", b"\x80\x02", bytes(range(256))):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"hostile\.pth"):
            M.load_torch_weights(path)
    assert not marker.exists()


def test_the_classifier_may_be_left_as_it_is():
    weights, p = resnet18(), build(classes=7)
    before = p["classifier/affine/W"].d.copy()
    M.load_torch_weights(weights, classifier=False)
    assert_loaded(p, weights)
    np.testing.assert_array_equal(p["classifier/affine/W"].d, before)


def without(weights, name):
    return {k: v for k, v in weights.items() if k != name}


REFUSED = {
    r"there is no 'layer2.1.conv1.weight', for stage2/block2/conv1/conv/W": (
        lambda w: without(w, "layer2.1.conv1.weight")
    ),
    r"there is no place for 'layer1.2.conv1.weight' in this network": (
        lambda w: {**w, "layer1.2.conv1.weight": w["conv1.weight"]}
    ),
    r"'fc.weight' has the shape \(512, 7\), wanted \(512, 1000\) for classifier/affine/W": (
        lambda w: {**w, "fc.weight": w["fc.weight"][:7]}
    ),
    r"neither torchvision nor timm names .* none of conv1.weight, features.0.0.weight, "
    r"conv_stem.weight is among the 1 names": lambda w: {"layer1.0.conv1.weight": w["fc.bias"]},
    # a network of another family
    r"there is no 'features.0.1.bias'": lambda w: {"features.0.0.weight": w["conv1.weight"]},
    r"there is no 'bn1.bias'": lambda w: {"conv_stem.weight": w["conv1.weight"]},
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_does_not_fit_is_refused_and_changes_nothing(text):
    p = build()
    before = {k: v.d.copy() for k, v in p.items()}
    with pytest.raises((ValueError, ShapeError), match=f"^load_torch_weights: {text}"):
        M.load_torch_weights(REFUSED[text](resnet18()))
    for k, v in p.items():
        np.testing.assert_array_equal(v.d, before[k])


def test_without_a_network_there_is_nothing_to_load_into():
    with pytest.raises(ValueError, match=r"there is no network of nnl.models.build in this scope"):
        M.load_torch_weights(resnet18())

# SPDX-License-Identifier: Apache-2.0
"""Trained networks from files: a small file with the names that the published ones have."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.models.imagenet as imagenet
import nnl.parametric_functions as PF
from nnl.utils.save import save


def small_network(x: nn.Variable) -> dict[str, nn.Variable]:
    with nn.parameter_scope("conv"):
        h = PF.convolution(x, 4, (3, 3), pad=(1, 1), with_bias=False)
        h = PF.batch_normalization(h, batch_stat=True)
    r = F.relu(h)
    pool = F.average_pooling(r, (8, 8))
    return {
        "BatchNormalization_19": h,
        "ReLU_19": r,
        "AveragePooling": pool,
        "Affine": PF.affine(pool, 5),
    }


@pytest.fixture
def home(tmp_path: Path, monkeypatch) -> Path:
    """An address with a MobileNet of one layer for images of 8 x 8, and a home to load it to."""
    x = nn.Variable((2, 3, 8, 8))
    names = {"InputX": x, **small_network(F.image_augmentation(x, shape=(3, 8, 8)))}
    folder = tmp_path / "zoo" / "imagenet" / "MobileNet"
    folder.mkdir(parents=True)
    first = tmp_path / "first.nnp"
    network = {
        "name": "Training",
        "batch_size": 2,
        "outputs": {"Affine": names["Affine"]},
        "names": names,
    }
    save(str(first), {"networks": [network]})
    with zipfile.ZipFile(first) as source, zipfile.ZipFile(folder / "MobileNet.nnp", "w") as sink:
        for entry in source.namelist():
            content = source.read(entry)
            if entry.endswith(".nntxt"):
                content = content.replace(b'"@Training/', b'"')
                content = content.replace(b'"ImageAugmentation"', b'"ImageAugmentationX"')
            sink.writestr(entry, content)
    monkeypatch.setenv("NNL_MODELS_URL_BASE", f"file://{tmp_path}/zoo/")
    monkeypatch.setenv("NNL_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(imagenet.MobileNet, "size", 8)
    return tmp_path


def images(n: int = 3) -> nn.Variable:
    x = nn.Variable((n, 3, 8, 8))
    x.d = np.random.default_rng(1).normal(size=x.shape)
    return x


@pytest.mark.parametrize("key", ["classifier", "pool", "lastconv", "lastconv+relu"])
def test_network_is_that_of_the_file_up_to_the_variable(home: Path, key: str) -> None:
    wanted = images()
    outputs = small_network(wanted)  # the parameters of the file, as they are here too
    outputs[imagenet.MobileNet.keys[key]].forward()
    kept = {k: v.d.copy() for k, v in nn.get_parameters(grad_only=False).items()}
    nn.clear_parameters()
    model = imagenet.MobileNet()
    x = images()
    y = model(x, training=True, use_up_to=key)
    y.forward()
    np.testing.assert_allclose(y.d, outputs[imagenet.MobileNet.keys[key]].d, rtol=1e-5, atol=1e-6)
    assert set(nn.get_parameters(grad_only=False)) <= set(kept)
    assert (home / "home" / "nnp_models" / "imagenet" / "MobileNet.nnp").exists()


def test_network_is_fixed_unless_it_is_trained(home: Path) -> None:
    y = imagenet.MobileNet()(images())
    assert not y.need_grad
    assert imagenet.MobileNet()(images(), training=True).need_grad


def test_input_of_its_own_is_one_image(home: Path) -> None:
    model = imagenet.MobileNet()
    assert model.input_shape == (3, 8, 8)
    net = model(returns_net=True)
    assert [v.shape for v in net.inputs.values()] == [(1, 3, 8, 8)]
    assert [v.shape for v in net.outputs.values()] == [(1, 5)]


def test_other_sizes_of_images_need_a_global_pooling(home: Path) -> None:
    model = imagenet.MobileNet()
    x = nn.Variable((1, 3, 16, 16))
    with pytest.raises(ValueError, match="AveragePooling"):
        model(x, use_up_to="pool")
    assert model(x, use_up_to="pool", force_global_pooling=True).shape == (1, 4, 1, 1)
    assert model(x, use_up_to="pool", check_global_pooling=False).shape == (1, 4, 2, 2)


def test_wrong_arguments_are_named(home: Path) -> None:
    model = imagenet.MobileNet()
    with pytest.raises(ValueError, match="MobileNet: use_up_to is 'top', wanted one of"):
        model(use_up_to="top")
    with pytest.raises(ValueError, match=r"input_var has the shape \(1, 1, 8, 8\), wanted \(B, 3,"):
        model(nn.Variable((1, 1, 8, 8)))
    with pytest.raises(ValueError, match=r"ResNet: num_layers is 19, wanted one of \(18, 34,"):
        imagenet.ResNet(19)


@pytest.mark.parametrize("name", ["ResNet50", "VGG16", "ResNeXt101", "SqueezeNetV10", "NIN"])
def test_a_file_that_cannot_be_downloaded_says_where_to_put_it(home: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"{name}: .*put the file at .*nnp_models"):
        getattr(imagenet, name)()

# SPDX-License-Identifier: Apache-2.0
"""The networks that nnl.models.build knows by name, and `nnl models`."""

import json

import pytest

import nnl as nn
from nnl import models as M
from nnl.cli.main import main

# Millions of parameters and thousand millions of multiply-adds, as the papers, torchvision (which
# counts the same for EfficientNet-B2) and timm (SE networks) publish them.
PUBLISHED = {
    "resnet18": (224, 11.69, 1.82),
    "resnet34": (224, 21.80, 3.66),
    "resnet50": (224, 25.56, 4.11),
    "resnet101": (224, 44.55, 7.80),
    "resnet152": (224, 60.19, 11.51),
    "resnext50": (224, 25.03, 4.26),
    "se_resnet50": (224, 28.09, 4.13),
    "se_resnext50": (224, 27.56, 4.28),
    "mobilenet_v3_small": (224, 2.54, 0.057),
    "mobilenet_v3_large": (224, 5.48, 0.217),
    "efficientnet_b0": (224, 5.29, 0.39),
    "efficientnet_b1": (240, 7.79, 0.69),
    "efficientnet_b2": (260, 9.11, 1.0),
    "efficientnet_b3": (300, 12.23, 1.83),
}


DEEP = ("resnet34", "resnet101", "resnet152")  # seconds, and nothing in them is new
QUICK = tuple(name for name in PUBLISHED if name not in DEEP)


def test_what_is_published_is_all_that_there_is():
    assert list(M.NETWORKS) == list(PUBLISHED)


@pytest.mark.parametrize("names", [QUICK, pytest.param(DEEP, marks=pytest.mark.long)])
def test_nnl_models_prints_the_published_numbers(names, capsys):
    nn.parameter.set_parameter("mine/W", nn.Variable((3,), need_grad=True))
    assert main(["models", "--json", *names]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(names)
    for row in rows:
        name = row["name"]
        size, millions, adds = PUBLISHED[name]
        assert row["size"] == size
        assert abs(row["parameters"] / 1e6 - millions) <= 0.01, name
        assert abs(row["multiply_adds"] / 1e9 / adds - 1) <= 0.03, name
    assert list(nn.get_parameters()) == ["mine/W"]  # nobody sees what was built to be counted


def test_nnl_models_prints_a_table_of_some_networks_at_another_size(capsys):
    assert main(["models", "resnet18", "--size", "96"]) == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["network", "size", "parameters", "multiply-adds"]
    assert row.split()[:3] == ["resnet18", "96", "11,689,512"]
    products = int(row.split()[3].replace(",", ""))
    assert products == pytest.approx(1.814e9 * (96 / 224) ** 2, rel=0.01)  # torchvision's number


# What torchvision's files say of themselves: size, parameters, thousand millions of multiply-adds.
# It has EfficientNet-B2 at 288, the paper at 260.
TORCHVISION = {
    "resnet18": (224, 11689512, 1.814),
    "resnet50": (224, 25557032, 4.089),
    "resnext50": (224, 25028904, 4.230),
    "mobilenet_v3_small": (224, 2542856, 0.057),
    "mobilenet_v3_large": (224, 5483032, 0.217),
    "efficientnet_b0": (224, 5288548, 0.386),
    "efficientnet_b1": (240, 7794184, 0.687),
    "efficientnet_b2": (288, 9109994, 1.088),
    "efficientnet_b3": (300, 12233232, 1.827),
}


@pytest.mark.parametrize("name", TORCHVISION)
def test_networks_cost_what_torchvisions_do(name, capsys):
    size, parameters, adds = TORCHVISION[name]
    assert main(["models", "--json", "--size", str(size), name]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["parameters"] == parameters
    assert row["multiply_adds"] / 1e9 == pytest.approx(adds, rel=0.01)


def test_nnl_models_refuses_what_it_does_not_know(capsys):
    assert main(["models", "resnet19"]) == 1
    assert "there is no network 'resnet19', wanted one of resnet18, resnet34," in (
        capsys.readouterr().err
    )
    assert main(["models", "--size", "8"]) == 2
    assert "--size is 8, wanted at least 32" in capsys.readouterr().err


def test_build_passes_options_on_and_refuses_unknown_names():
    x = nn.Variable((2, 3, 32, 32))
    y = M.build("efficientnet_b0", x, num_classes=7, dropout=0.0, drop_path=0.0)
    assert y.shape == (2, 7)
    with pytest.raises(ValueError, match=r"build: name is 'vgg', wanted one of resnet18, resnet34"):
        M.build("vgg", x)

# SPDX-License-Identifier: Apache-2.0
"""Projects of Neural Network Console become documents with the same counts."""

import pytest

from nnl.console.documents.analysis import analyse
from nnl.console.documents.reading import read
from nnl.console.errors import Refused
from tests.console.networks import named


def project(layers, links, config=""):
    text = f"[Network_Global]\nNumLayer={len(layers)}\nNumLink={len(links)}\n"
    for i, (kind, name, given) in enumerate(layers):
        given = {"Name": name, **given}
        text += f"[Layer_{i}]\nID={i + 5}\nType={kind}\nPosition_0=24\nPosition_1={48 * i}\n"
        for k, (key, value) in enumerate(given.items()):
            text += f"Property_{k}_Name={key}\nProperty_{k}_Value={value}\n"
        text += f"NumProperty={len(given)}\n"
    for i, (source, target) in enumerate(links):
        text += f"[Link_{i}]\nID={i}\nSourceLayerID={source + 5}\nSourcePinIndex=0\n"
        text += f"DestLayerID={target + 5}\nDestPinIndex=0\n"
    return text + config


CONVOLUTION = {
    "OutMaps": "16",
    "KernelShape": "3,3",
    "Padding": "*ConvolutionPaddingSize",
    "Strides": "1,1",
    "ParameterScope": "*Name",
    "W.Initializer": "NormalConvolutionGlorot",
}
LAYERS = [
    ("Input", "Input", {"Size": "1,28,28", "Dataset": "x"}),
    ("Convolution", "Convolution", {**CONVOLUTION, "BorderMode": "same", "WithBias": "False"}),
    ("BatchNormalization", "BN", {"Axes": "0", "DecayRate": "0.5", "Epsilon": "0.01"}),
    ("Convolution", "Convolution_2", {**CONVOLUTION, "BorderMode": "full"}),
    ("MaxPooling", "Pool", {"KernelShape": "2,2", "Strides": "*KernelShape", "Padding": "0,0"}),
    ("Convolution", "Convolution_3", {**CONVOLUTION, "BorderMode": "valid"}),
    ("Affine", "Affine", {"OutShape": "10"}),
    ("SoftmaxCrossEntropy", "Loss", {"T.Dataset": "y"}),
    ("Add2", "Add2", {"InPlace": "*AutoInPlace"}),
]
LINKS = [(0, 1), (1, 2), (1, 8), (2, 8), (8, 3), (3, 4), (4, 5), (5, 6), (6, 7)]
CONFIG = """[Config]
MaxEpoch=7
SaveBest=1
BatchSize=16
[Optimizer_0]
SolverName=Adam
SolverParameterNum=2
SolverParameterName_0=Alpha
SolverParameter_0=0.002
SolverParameterName_1=Epsilon
SolverParameter_1=1e-07
WeightDecay=0.001
LearningRateScheduler=Cosine
"""


def test_a_project_becomes_a_document_that_can_be_trained(tmp_path):
    path = tmp_path / "net.sdcproj"
    path.write_text(project(LAYERS, LINKS, CONFIG))
    found = read(path)
    assert not found.report
    analysis = analyse(found.document)
    assert analysis["trainable"], analysis["problems"]
    net = found.document.main
    shapes = {
        n.name: analysis["networks"]["main"]["nodes"][n.id]["outputs"][0]["shape"]
        for n in net.nodes.values()
    }
    assert shapes["Convolution"] == [1, 16, 28, 28] and shapes["Convolution_2"] == [1, 16, 30, 30]
    assert shapes["Convolution_3"] == [1, 16, 13, 13] and shapes["y"] == [1, 1]
    assert named(net, "BN").properties == {"decay_rate": 0.5, "eps": 0.01}
    assert analysis["totals"]["parameters"] == 144 + 32 + 2 * (2304 + 16) + 16 * 13 * 13 * 10 + 10
    config = found.document.config
    assert (config["max_epoch"], config["batch_size"]) == (7, 16)
    assert config["optimizer"] == {
        "type": "Adam",
        "properties": {"alpha": 0.002, "eps": 1e-07},
        "weight_decay": 0.001,
        "schedule": {"type": "cosine"},
    }


def test_what_is_unknown_is_kept_and_reported(tmp_path):
    path = tmp_path / "net.sdcproj"
    layers = [
        LAYERS[0],
        ("RepeatStart", "Again", {"Times": "3"}),
        ("Affine", "A", {"OutShape": "n"}),
    ]
    path.write_text(project(layers, [(0, 1), (1, 2)]))
    found = read(path)
    texts = [text for _, text in found.report]
    assert texts[0] == "Again: the layer RepeatStart is unknown here" and "'n'" in texts[1]
    node = named(found.document.main, "Again")
    assert node.type == "Unknown" and node.properties["properties"]["Times"] == "3"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no sections",
        "[Network_Global]\nNumLayer=1\nNumLink=0\n",
        "[Network_Global]\nNumLayer=-1\nNumLink=0\n",
        "[Network_Global]\nNumLayer=999999999\nNumLink=0\n",
        project(LAYERS[:1], [(0, 3)]),
    ],
)
def test_broken_projects_are_refused(tmp_path, text):
    path = tmp_path / "net.sdcproj"
    path.write_text(text)
    with pytest.raises(Refused, match="net.sdcproj is no project"):
        read(path)

# SPDX-License-Identifier: Apache-2.0
"""Networks trained on ImageNet, from the .nnp files that NNabla's authors publish.

The first use of a network downloads its file to $NNL_DATA_HOME/nnp_models/imagenet. Where that is
not possible, put it there, or name a folder or address that has the same files in
NNL_MODELS_URL_BASE ("file:///data/nnp_models/").
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError

from nnl.converters.nnp.graph import NnpLoader, NnpNetwork, NnpNetworkPass
from nnl.core.graph.variable import Variable
from nnl.data.download import download, get_data_home

URL_BASE = "https://nnabla.org/pretrained-models/nnp_models/"


def get_model_home() -> str:
    """Folder of the files that were downloaded."""
    return os.path.join(get_data_home(), "nnp_models")


def get_model_url_base() -> str:
    """Address below which the files are: NNL_MODELS_URL_BASE, or that of NNabla."""
    return os.environ.get("NNL_MODELS_URL_BASE", URL_BASE)


class ImageNetBase:
    """A trained network that can be built on any batch of images.

    Class attributes:
        file: Where its file is below the folder "imagenet", without the extension.
        network: Name of the network in the file.
        image, augmentation: Names of its input and of the function after that, which is left out.
        size: Height and width of the images it was trained on.
        pooling: Name of its last average pooling, if it has one.
        dropouts: Functions that are left out unless it is trained.
        keys: {what use_up_to may be: name of the variable}.
    Raises:
        FileNotFoundError: The file is not there and cannot be downloaded.
    """

    file: str
    network = "Training"
    image = "InputX"
    augmentation = "ImageAugmentationX"
    size = 224
    pooling: str | None = "AveragePooling"
    dropouts: tuple[str, ...] = ()
    keys: Mapping[str, str] = {}

    def __init__(self) -> None:
        path = Path(get_model_home(), "imagenet", os.path.basename(self.file) + ".nnp")
        url = f"{get_model_url_base().rstrip('/')}/imagenet/{self.file}.nnp"
        try:
            download(url, path, open_file=False)
        except URLError as e:
            raise FileNotFoundError(
                f"{type(self).__name__}: {url} cannot be downloaded ({e.reason}); put the file at "
                f"{path}, or set NNL_MODELS_URL_BASE to where it is"
            ) from e
        self.nnp = NnpLoader(str(path))

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width it was trained on."""
        return (3, self.size, self.size)

    def __call__(
        self,
        input_var: Variable | None = None,
        use_from: None = None,
        use_up_to: str = "classifier",
        training: bool = False,
        force_global_pooling: bool = False,
        check_global_pooling: bool = True,
        returns_net: bool = False,
        verbose: int = 0,
    ) -> Variable | NnpNetwork:
        """Build the network.

        Args:
            input_var: (B, 3, H, W), values 0 to 255; a new one of batch size 1 if left out.
            use_from: Is not used.
            use_up_to: The last variable: "classifier" (without softmax), "pool", "lastconv",
                "lastconv+relu", ...
            training: Batch statistics, dropout, and parameters that need a gradient.
            force_global_pooling: Pool over whole images, whatever their size.
            check_global_pooling: Refuse images for which the last pooling is not over the whole.
            returns_net: Return the NnpNetwork, with all variables.
            verbose: Log what is changed in the network.
        Returns:
            The last variable, or the network.
        Raises:
            ValueError: use_up_to is unknown, or input_var is no batch of colour images.
        """
        where = type(self).__name__
        if use_up_to not in self.keys:
            raise ValueError(
                f"{where}: use_up_to is {use_up_to!r}, wanted one of {sorted(self.keys)}"
            )
        x = Variable((1, *self.input_shape)) if input_var is None else input_var
        if x.ndim != 4 or x.shape[1] != 3:
            raise ValueError(f"{where}: input_var has the shape {x.shape}, wanted (B, 3, H, W)")
        callback = NnpNetworkPass(verbose)
        self._replace_input(callback, x)
        if self.pooling is not None and force_global_pooling:
            callback.force_average_pooling_global(self.pooling)
        elif self.pooling is not None and check_global_pooling:
            callback.check_average_pooling_global(self.pooling)
        callback.set_batch_normalization_batch_stat_all(training)
        callback.use_up_to(self.keys[use_up_to])
        if not training:
            for name in self.dropouts:
                callback.remove_and_rewire(name)
            callback.fix_parameters()
        net = self.nnp.get_network(self.network, batch_size=x.shape[0], callback=callback)
        return net if returns_net else list(net.outputs.values())[0]

    def _replace_input(self, callback: NnpNetworkPass, x: Variable) -> None:
        callback.remove_and_rewire(self.augmentation)
        callback.set_variable(self.image, x)


def _keys(prefix: str, classifier: str, pool: str, conv: str, relu: str) -> dict[str, str]:
    names = {"classifier": classifier, "pool": pool, "lastconv": conv, "lastconv+relu": relu}
    return {key: prefix + name for key, name in names.items()}


class _Numbered(ImageNetBase):
    """A family of networks that differ in their number of layers."""

    sizes: tuple[int, ...]
    pattern: str

    def __init__(self, num_layers: int) -> None:
        if num_layers not in self.sizes:
            raise ValueError(
                f"{type(self).__name__}: num_layers is {num_layers!r}, wanted one of {self.sizes}"
            )
        self.num_layers = num_layers
        self.file = self.pattern.format(num_layers)
        self.keys = self._keys_of(num_layers)
        super().__init__()

    def _keys_of(self, n: int) -> dict[str, str]:
        i = 0 if n == 18 else 1
        return _keys(
            "", "Affine", "AveragePooling", f"Add2_7_RepeatStart_4[{i}]",
            f"ReLU_25_RepeatStart_4[{i}]",
        )  # fmt: skip


class ResNet(_Numbered):
    """Residual network of 18, 34, 50, 101 or 152 layers (He et al., arXiv:1512.03385)."""

    sizes, pattern = (18, 34, 50, 101, 152), "Resnet-{0}/Resnet-{0}"

    def __init__(self, num_layers: int = 18) -> None:
        super().__init__(num_layers)


class ResNeXt(_Numbered):
    """ResNeXt of 50 or 101 layers (Xie et al., arXiv:1611.05431)."""

    sizes, pattern = (50, 101), "ResNeXt-{0}/ResNeXt-{0}"

    def __init__(self, num_layers: int = 50) -> None:
        super().__init__(num_layers)


class VGG(_Numbered):
    """VGG of 11, 13 or 16 layers (Simonyan and Zisserman, arXiv:1409.1556)."""

    sizes, pattern = (11, 13, 16), "VGG-{0}/VGG-{0}"
    image, pooling = "TrainingInput", None

    def __init__(self, num_layers: int = 11) -> None:
        super().__init__(num_layers)
        self.dropouts = (f"VGG{num_layers}/Dropout_1", f"VGG{num_layers}/Dropout_2")

    def _keys_of(self, n: int) -> dict[str, str]:
        last = 13 if n == 16 else 12
        names = _keys(f"VGG{n}/", "Affine_3", "MaxPooling_5", f"Convolution_{last}", f"ReLU_{last}")
        return {**names, "lastfeature": f"VGG{n}/Affine_2"}


class SENet(ImageNetBase):
    """SENet-154 (Hu et al., arXiv:1709.01507)."""

    file, dropouts = "SENet-154/SENet-154", ("Dropout",)
    keys = _keys(
        "", "Affine", "AveragePooling", "Add2_7_RepeatStart_4[1]", "ReLU_25_RepeatStart_4[1]"
    )


class MobileNet(ImageNetBase):
    """MobileNet (Howard et al., arXiv:1704.04861)."""

    file = "MobileNet/MobileNet"
    keys = _keys("", "Affine", "AveragePooling", "BatchNormalization_19", "ReLU_19")


class MobileNetV2(ImageNetBase):
    """MobileNetV2 (Sandler et al., arXiv:1801.04381)."""

    file = "MobileNet-v2/MobileNet-v2"
    keys = _keys("", "Reshape", "AveragePooling", "BatchNormalization_2", "ReLU_2")

    def _replace_input(self, callback: NnpNetworkPass, x: Variable) -> None:
        callback.drop_function(self.augmentation)
        callback.set_variable(self.augmentation, x)


class NIN(ImageNetBase):
    """Network in network (Lin et al., arXiv:1312.4400)."""

    file, image, size = "NIN/NIN", "TrainingInput", 227
    pooling, dropouts = "NIN/AveragePooling", ("NIN/Dropout",)
    keys = _keys("NIN/", "Reshape", "AveragePooling", "Convolution_3", "ReLU_3")


class SqueezeNetV11(ImageNetBase):
    """SqueezeNet 1.1 (Iandola et al., arXiv:1602.07360)."""

    file, image, size = "SqueezeNet-1.1/SqueezeNet-1.1", "TrainingInput", 227
    pooling, dropouts = "SqueezeNet/AveragePooling", ("SqueezeNet/Dropout",)
    keys = _keys("SqueezeNet/", "Reshape", "AveragePooling", "Convolution_2", "ReLU_2")


class SqueezeNetV10(SqueezeNetV11):
    """SqueezeNet 1.0."""

    file = "SqueezeNet-1.0/SqueezeNet-1.0"
    pooling, dropouts = "AveragePooling", ("Dropout",)
    keys = _keys("", "Reshape", "AveragePooling", "Convolution_2", "ReLU_2")


class AlexNet(ImageNetBase):
    """AlexNet (Krizhevsky et al., NIPS 2012)."""

    file, image, size, pooling = "AlexNet/AlexNet", "TrainingInput", 227, None
    dropouts = ("TrainNet/Dropout", "TrainNet/Dropout_2")
    keys = {
        **_keys("TrainNet/", "Affine_3", "MaxPooling_3", "Convolution_5", "ReLU_5"),
        "lastfeature": "TrainNet/Affine_2",
    }


class DenseNet(ImageNetBase):
    """DenseNet-161 (Huang et al., arXiv:1608.06993)."""

    file, network, pooling = "DenseNet-161/DenseNet-161", "Train", "DenseNet/AveragePooling_4"
    keys = _keys("DenseNet/", "Affine", "AveragePooling_4", "BatchNormalization_5", "ReLU_5")


class Xception(ImageNetBase):
    """Xception (Chollet, arXiv:1610.02357)."""

    file, augmentation, size = "Xception/Xception", "ImageAugmentation", 299
    pooling, dropouts = "Unit/AveragePooling", ("Unit/Dropout",)
    keys = _keys("Unit/", "Affine", "AveragePooling", "SeparableConv_13/SepConvBN", "ReLU_14")


def _member(name: str, family: type[_Numbered], num_layers: int) -> type[Any]:
    def init(self: Any) -> None:
        family.__init__(self, num_layers)

    text = f"{family.__name__} of {num_layers} layers."
    return type(name, (family,), {"__init__": init, "__doc__": text, "__module__": __name__})


ResNet18, ResNet34, ResNet50, ResNet101, ResNet152 = (
    _member(f"ResNet{n}", ResNet, n) for n in ResNet.sizes
)
ResNeXt50, ResNeXt101 = (_member(f"ResNeXt{n}", ResNeXt, n) for n in ResNeXt.sizes)
VGG11, VGG13, VGG16 = (_member(f"VGG{n}", VGG, n) for n in VGG.sizes)

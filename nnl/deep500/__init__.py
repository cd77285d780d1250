# SPDX-License-Identifier: Apache-2.0
"""Deep500: networks, operators, optimizers and frameworks compared on equal terms.

    import nnl.deep500 as d5

    net = d5.network("lenet.onnx", "torch")       # or nnl, reference, onnxruntime, tensorflow ...
    net.add_loss("scores")
    net.inference_and_backprop({"x": images, "label": numbers})
    net.fetch([gradient for _, gradient in net.gradient()])

After Ben-Nun et al., A Modular Benchmarking Infrastructure for High-Performance and Reproducible
Deep Learning, IPDPS 2019. Everything is imported when it is used.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

_OURS = f"{__name__}.networks."
# back end: module, class, and the package it needs
_BACKENDS = {
    "reference": (_OURS + "reference", "ReferenceNetwork", "numpy"),
    "nnl": (_OURS + "nnl", "NnlNetwork", "numpy"),
    "onnxruntime": (_OURS + "onnxruntime", "OnnxRuntimeNetwork", "onnxruntime"),
    "torch": (_OURS + "torch", "TorchNetwork", "torch"),
    "tensorflow": (_OURS + "tensorflow", "TensorFlowNetwork", "tensorflow"),
    "openvino": (_OURS + "openvino", "OpenVinoNetwork", "openvino"),
}

_HOME = {
    "Network": "contract",
    "NetworkError": "contract",
    "Operation": "operation",
    "CppOperation": "operation",
}

__all__ = sorted([*_HOME, "add_backend", "backends", "network", "network_class"])


def backends(training: bool = False) -> dict[str, str]:
    """Every back end, with "" if it can be used and else with how to install it.

    Args:
        training: Whether it must have gradients, too; where it never has any, that is said.
    """
    found = {
        name: "" if find_spec(package) is not None else f"pip install {package}"
        for name, (_, _, package) in _BACKENDS.items()
    }
    if training:
        for name, hint in found.items():
            if not hint and not (cls := network_class(name)).trains:
                found[name] = cls.training_hint or "runs inference only"
    return found


def add_backend(name: str, module: str, cls: str, package: str = "numpy") -> None:
    """Make a Network of another module known under a name, on which everything here then runs.

    Args:
        package: What must be installed for it.
    """
    _BACKENDS[name] = module, cls, package


def network_class(backend: str) -> Any:
    """The Network of a back end.

    Raises:
        ValueError: There is no such back end. ModuleNotFoundError: Its package is not installed.
    """
    name = backend.partition(":")[0]
    if name not in _BACKENDS:
        raise ValueError(f"there is no back end {name!r}, wanted one of {', '.join(_BACKENDS)}")
    module, cls, package = _BACKENDS[name]
    hint = backends()[name]
    if hint:
        raise ModuleNotFoundError(f"the back end {name} is not installed: {hint}", name=package)
    return getattr(import_module(module), cls)


def network(model: Any, backend: str = "nnl", trainable: Any = None) -> Any:
    """A model on a back end.

    Args:
        model: Path of an .onnx file, its bytes, or a typed Model of nnl.converters.onnx.read().
        backend: "NAME" or "NAME:DEVICE", as in "nnl:numpy" or "torch:compiled".
        trainable: Names of the initializers that train; see Network.
    """
    return network_class(backend)(model, backend.partition(":")[2], trainable)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)

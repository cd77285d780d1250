# SPDX-License-Identifier: Apache-2.0
from nnl.converters.modifiers import (
    BatchNormalizationFoldingModifier,
    BatchNormBatchStatModifier,
    FunctionModifier,
    GraphConverter,
    IdentityModifier,
    NoGradModifier,
    RemoveFunctionModifier,
    TestModeModifier,
)

__all__ = [
    "BatchNormBatchStatModifier",
    "BatchNormalizationFoldingModifier",
    "FunctionModifier",
    "GraphConverter",
    "IdentityModifier",
    "NoGradModifier",
    "RemoveFunctionModifier",
    "TestModeModifier",
]

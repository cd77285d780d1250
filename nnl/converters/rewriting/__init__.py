# SPDX-License-Identifier: Apache-2.0
"""Graphs made from graphs: what stands in nnabla.experimental.graph_converters."""

from nnl.converters.rewriting.channels import ChannelFirstModifier, ChannelLastModifier
from nnl.converters.rewriting.converter import (
    BatchNormBatchStatModifier,
    FunctionModifier,
    GraphConverter,
    IdentityModifier,
    NoGradModifier,
    RemoveFunctionModifier,
    TestModeModifier,
)
from nnl.converters.rewriting.normalization import (
    AddBiasModifier,
    BatchNormalizationFoldingModifier,
    BatchNormalizationFoldingModifierInner,
    BatchNormalizationFoldingOppositeModifierInner,
    BatchNormalizationSelfFoldingModifier,
    FusedBatchNormalizationModifier,
    UnfusedBatchNormalizationModifier,
)
from nnl.converters.rewriting.recording import (
    QuantizeNonQNNToRecordingModifier,
    QuantizeRecordingToTrainingModifier,
)
from nnl.converters.rewriting.weights import PruningModifier

__all__ = [
    "AddBiasModifier",
    "BatchNormBatchStatModifier",
    "BatchNormalizationFoldingModifier",
    "BatchNormalizationFoldingModifierInner",
    "BatchNormalizationFoldingOppositeModifierInner",
    "BatchNormalizationSelfFoldingModifier",
    "ChannelFirstModifier",
    "ChannelLastModifier",
    "FunctionModifier",
    "FusedBatchNormalizationModifier",
    "GraphConverter",
    "IdentityModifier",
    "NoGradModifier",
    "PruningModifier",
    "QuantizeNonQNNToRecordingModifier",
    "QuantizeRecordingToTrainingModifier",
    "RemoveFunctionModifier",
    "TestModeModifier",
    "UnfusedBatchNormalizationModifier",
]

# SPDX-License-Identifier: Apache-2.0
from nnl.converters.nnp.reader import load
from nnl.converters.nnp.training_reader import restore_states as restore_optimizer_state

__all__ = ["load", "restore_optimizer_state"]

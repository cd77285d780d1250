# SPDX-License-Identifier: Apache-2.0
"""The extensions as modules, where scripts import nnabla_ext.cpu or nnabla_ext.cudnn."""

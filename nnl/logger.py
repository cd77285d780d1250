# SPDX-License-Identifier: Apache-2.0
"""The logger of nnl: to stderr, from the level in NNL_LOG_LEVEL on (a name or number; INFO)."""

import logging as _logging
import os as _os

logger = _logging.getLogger("nnl")

if not logger.handlers:
    _handler = _logging.StreamHandler()
    _handler.setFormatter(_logging.Formatter("%(asctime)s [%(name)s][%(levelname)s]: %(message)s"))
    logger.addHandler(_handler)
    logger.propagate = False  # the root logger's handlers would print each line again

_level = _os.environ.get("NNL_LOG_LEVEL", "INFO").strip().upper()
try:
    logger.setLevel(int(_level) if _level.isdigit() else _level)
except ValueError:
    logger.setLevel(_logging.INFO)
    logger.warning("NNL_LOG_LEVEL=%s is no level of logging; INFO is used", _level)

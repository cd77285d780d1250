# SPDX-License-Identifier: Apache-2.0
"""Files of texts, of prompts with answers and of conversations, as rows that a network learns from.

`open_texts` opens files of lines of JSON and of Parquet's form.
"""

from nnl.data.texts.rows import Batch, Texts, open_texts

__all__ = ["Batch", "Texts", "open_texts"]

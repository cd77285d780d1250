# SPDX-License-Identifier: Apache-2.0
"""Folders of Hugging Face's libraries: configs, tensors by family, and text."""

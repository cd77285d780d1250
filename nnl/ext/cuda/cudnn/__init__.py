# SPDX-License-Identifier: Apache-2.0
"""Convolution, normalization, matrix products and attention by cuDNN. Not yet run on a GPU.

A builder turns a call into a Work: graphs for cuDNN, and copies, as plain values (spec, rules,
assemble; convolution, normalization, product, attention). The tests check and evaluate them with
numpy. They are lowered to NVIDIA's front end (lower), and run (run, cache, setups).
"""

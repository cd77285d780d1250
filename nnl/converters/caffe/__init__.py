# SPDX-License-Identifier: Apache-2.0
"""Caffe's files: prototxt, weights, and networks as both; nnl.dialects.caffe reads networks."""

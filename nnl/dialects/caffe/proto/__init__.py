# SPDX-License-Identifier: Apache-2.0
"""`caffe.proto.caffe_pb2`: the messages of Caffe's files."""

from nnl.dialects.caffe.proto import caffe_pb2

__all__ = ["caffe_pb2"]

# SPDX-License-Identifier: Apache-2.0
"""TensorFlow Lite: `.tflite` files, which are FlatBuffers of operators on channels-last tensors.

What the files are made of is in `schema`, their bytes in `flatbuffer`. `writer` says a lowered
network in operators, `reader` reads them back.
"""

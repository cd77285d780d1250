# SPDX-License-Identifier: Apache-2.0
"""The message builder: what it writes is what the protobuf encoding prescribes."""

from __future__ import annotations

import struct

import pytest

from nnl.converters.nnp.messages import Field, build, messages, rows


def test_a_parameter_is_encoded_with_nnablas_numbers() -> None:
    p = messages()["Parameter"](variable_name="w", need_grad=True, data=[1.5, -2.0])
    p.shape.dim.extend([1, 2])
    data = struct.pack("<ff", 1.5, -2.0)
    # key = number * 8 + wire type: 1 varint 10, 20 varint 162 1, 100 162 6, 101 168 6
    shape = b"\xa2\x01\x04\x0a\x02\x01\x02"
    wanted = b"\x0a\x01w" + shape + b"\xa2\x06\x08" + data + b"\xa8\x06\x01"
    assert p.SerializeToString() == wanted


def test_maps_one_of_groups_and_repeated_messages() -> None:
    table = rows(
        """
        Point  x      1  float               singular
        Point  y      2  float               singular  kind
        Point  z      3  int64               singular  kind
        Cloud  point  1  Point               repeated
        Cloud  named  2  map<string,Point>   map
        """
    )
    cls = build(table)
    cloud = cls["Cloud"]()
    cloud.named["a"].z = 3
    cloud.named["a"].y = 2.0
    cloud.point.add(x=1)
    again = cls["Cloud"].FromString(cloud.SerializeToString())
    assert again.named["a"].WhichOneof("kind") == "y" and again.named["a"].z == 0
    assert again.point[0].x == 1 and again.point[0].WhichOneof("kind") is None


def test_fields_that_the_table_does_not_know_survive() -> None:
    large = build([Field("M", "a", 1, "int64"), Field("M", "b", 2, "string")])["M"]
    small = build([Field("M", "a", 1, "int64")])["M"]
    data = large(a=1, b="x").SerializeToString()
    assert small.FromString(data).SerializeToString() == data


def test_an_undefined_type_is_named() -> None:
    with pytest.raises(ValueError, match="M.a has the type 'N', which is not defined"):
        build([Field("M", "a", 1, "N")])

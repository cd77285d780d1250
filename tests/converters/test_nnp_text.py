# SPDX-License-Identifier: Apache-2.0
"""The reader of networks' text against the protobuf package."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import text_format

from nnl.converters.nnp.messages import binary_form, messages, parse
from nnl.ext.native import library
from tests.converters.loop_networks import NETWORKS

TEXT = """network {
  name: "n"
  batch_size: 4
  variable {
    name: "x"
    type: "Buffer"
    shape {
      dim: -1
      dim: 8
    }
    initializer {
      type: "Constant"
      multiplier: 1.5e-3
    }
  }
  function {
    name: "f"
    type: "Convolution"
    input: "x"
    input: "w"
    output: "y"
    convolution_param {
      base_axis: 1
      pad {
        dim: 1
      }
      channel_last: true
    }
  }
}
parameter {
  variable_name: "w"
  shape {
    dim: 2
  }
  data: 1
  data: -0.25
  need_grad: true
}
"""


def slow(text: str) -> object:
    message = messages()["NNablaProtoBuf"]()
    text_format.Parse(text, message, allow_unknown_field=True)
    return message


def fast(text: str) -> object:
    """What the fast reader makes of it, or None."""
    data = binary_form("NNablaProtoBuf", text.encode())
    return None if data is None else messages()["NNablaProtoBuf"].FromString(data)


needs_native = pytest.mark.skipif(library() is None, reason="the native engine is not built")


@needs_native
def test_text_as_programs_write_it_is_read_at_once() -> None:
    for text in (TEXT, str(slow(TEXT)), ""):
        assert fast(text) == slow(text)


@pytest.mark.parametrize(
    "change",
    [
        ('name: "n"', "name: 'n'"),
        ('name: "n"', 'name: "n" # a comment'),
        ('name: "n"', 'name: "a" "b"'),
        ('name: "n"', r'name: "\346\227\245"'),
        ('name: "n"', 'name: "日本"'),
        ("batch_size: 4", "batch_size: 0x10"),
        ("batch_size: 4", "batch_size: 010"),
        ("batch_size: 4", "batch_size:4"),
        ("batch_size: 4", "batch_size: 4, unknown: 3"),
        ("batch_size: 4", "unknown { name: 3 }"),
        ("dim: -1\n      dim: 8", "dim: [-1, 8]"),
        ("multiplier: 1.5e-3", "multiplier: 1.5f"),
        ("multiplier: 1.5e-3", "multiplier: inf"),
        ("channel_last: true", "channel_last: 1"),
        ("    shape {", "    shape: <"),
    ],
)
def test_unusual_text_is_read_by_the_protobuf_package(change: tuple[str, str]) -> None:
    text = TEXT.replace(*change, 1)
    if "<" in text:
        text = text.replace("dim: 8\n    }", "dim: 8\n    >")
    content = text.encode()
    assert fast(text) is None
    assert parse("NNablaProtoBuf", content, True, "here") == slow(text)


@pytest.mark.parametrize(
    "change",
    [
        ('name: "n"', 'name: "n"\n  name: "m"'),
        ("batch_size: 4", "batch_size: 99999999999999999999"),
        ("batch_size: 4", "batch_size: 1.5"),
        ("channel_last: true", "channel_last: yes"),
        ("channel_last: true\n    }", "}\n    affine_param {\n    }"),
        ("    pad {", "    base_axis {"),
        ("  batch_size: 4", "}"),
        ("  need_grad: true\n}", "  need_grad: true"),
    ],
)
def test_wrong_text_is_an_error_with_its_place(change: tuple[str, str]) -> None:
    text = TEXT.replace(*change, 1)
    with pytest.raises(ValueError, match="here: no NNablaProtoBuf message"):
        parse("NNablaProtoBuf", text.encode(), True, "here")


@needs_native
def test_what_is_read_fast_is_what_the_protobuf_package_reads() -> None:
    """Over mutated texts: what the fast reader accepts, the other one does, with equal result."""
    rng = np.random.default_rng(0)
    texts = [TEXT, *(str(slow(t)) for t in list(NETWORKS.values())[:3])]
    accepted = 0
    for round_ in range(1500):
        text = texts[round_ % len(texts)]
        lines = text.split("\n")
        i, j = rng.integers(len(lines), size=2)
        kind = rng.integers(4)
        if kind == 0:
            lines[i], lines[j] = lines[j], lines[i]
        elif kind == 1:
            lines.insert(i, lines[j])
        elif kind == 2:
            del lines[i]
        else:
            at = int(rng.integers(len(lines[i]) + 1))
            lines[i] = (
                lines[i][:at] + str(rng.choice(list('"0189.-e{}: #_\\'))) + lines[i][at + 1 :]
            )
        changed = "\n".join(lines)
        message = fast(changed)
        if message is not None:
            accepted += 1
            assert message == slow(changed), changed
    assert accepted > 100

# SPDX-License-Identifier: Apache-2.0
"""Packing of sequences against PyTorch, and what is refused."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

V = nn.Variable.from_numpy_array
LENGTHS, SIZES = np.array([4, 2, 1]), np.array([3, 2, 1, 1])


@pytest.mark.parametrize("batch_first", [False, True])
def test_pack_padded_sequence_equals_pytorch(batch_first):
    torch = pytest.importorskip("torch")
    from tests.functions.against_torch import compare

    x = np.random.default_rng(0).normal(size=(3, 4, 2) if batch_first else (4, 3, 2))
    pack = torch.nn.utils.rnn.pack_padded_sequence
    lengths = V(LENGTHS)
    compare(
        lambda x: F.pack_padded_sequence(x, lengths, batch_first)[0],
        lambda x: pack(x, torch.tensor(LENGTHS), batch_first).data,
        x,
    )
    with nn.auto_forward():
        assert F.pack_padded_sequence(V(x), lengths, batch_first)[1].d.tolist() == SIZES.tolist()


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("total", [None, 6])
def test_pad_packed_sequence_equals_pytorch(batch_first, total):
    torch = pytest.importorskip("torch")
    from tests.functions.against_torch import compare

    rnn, sizes = torch.nn.utils.rnn, V(SIZES)
    x = np.random.default_rng(0).normal(size=(7, 2))

    def reference(x):
        packed = rnn.PackedSequence(x, torch.tensor(SIZES))
        return rnn.pad_packed_sequence(packed, batch_first, -1.5, total)[0]

    compare(
        lambda x: F.pad_packed_sequence(x, sizes, batch_first, -1.5, total or -1)[0], reference, x
    )
    with nn.auto_forward():
        assert F.pad_packed_sequence(V(x), sizes)[1].d.tolist() == LENGTHS.tolist()


@pytest.mark.parametrize(
    "f,x,n,text",
    [
        ("pack_padded_sequence", (4, 3), [4, 2], r"must have the shapes \(T, B, ...\) and \(B,\)"),
        ("pack_padded_sequence", (4,), [4], r"must have the shapes \(T, B, ...\) and \(B,\)"),
        ("pack_padded_sequence", (4, 3), [5, 2, 1], "lengths has the value 5, wanted 0 to 4"),
        ("pad_packed_sequence", (4, 3), [[4]], r"must have the shapes \(N, ...\) and \(T,\)"),
        ("pad_packed_sequence", (4, 3), [2, 1], "have the sum 3, wanted the 4 steps of packed"),
        ("pad_packed_sequence", (4, 3), [1, 3], "batch_sizes has the value 3, wanted 0 to 1"),
    ],
)
def test_errors_name_what_came_and_what_was_wanted(f, x, n, text):
    with nn.auto_forward(), pytest.raises(ValueError, match=f"^{f}: .*{text}"):
        getattr(F, f)(V(np.zeros(x)), V(np.array(n)))


def test_a_static_graph_refuses_another_number_of_steps():
    lengths = V(LENGTHS)
    y = F.pack_padded_sequence(V(np.zeros((4, 3))), lengths)[0]
    lengths.d = np.array([4, 3, 1])
    with pytest.raises(ValueError, match="lengths have the sum 8, wanted 7 as when"):
        y.forward()


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("second", [[2, 2, 2], [4, 2, 1], [3, 2, 1, 1, 1], [5, 3, 1]])
def test_a_static_graph_follows_batch_sizes_of_another_shape(second, backend):
    """NNabla counts the sequences again when the shape of batch_sizes has changed."""
    sizes = nn.Variable.from_numpy_array(np.array([3, 2, 1, 1]))
    x = nn.Variable.from_numpy_array(np.ones((7, 2), np.float32), need_grad=True)
    with nn.context_scope(nn.Context([f"{backend}:float"])):
        y, lengths = F.pad_packed_sequence(x, sizes)
        nn.forward_all([y, lengths])
        assert y.shape == (4, 3, 2) and lengths.d.tolist() == [4, 2, 1]
        sizes.reset_shape((len(second),), True)
        x.reset_shape((sum(second), 2), True)
        sizes.d, x.d = second, np.arange(1, 2 * sum(second) + 1).reshape(-1, 2)
        loss = F.sum(y * y)
        nn.forward_all([y, lengths, loss])
        x.grad.zero()
        loss.backward()
    assert y.shape == y.d.shape == (len(second), second[0], 2)
    assert lengths.d.tolist() == [sum(n > i for n in second) for i in range(second[0])]
    packed = [row for step, n in zip(y.d, second, strict=True) for row in step[:n]]
    np.testing.assert_array_equal(packed, x.d)
    assert np.count_nonzero(y.d) == x.d.size
    np.testing.assert_array_equal(x.g, 2 * x.d)

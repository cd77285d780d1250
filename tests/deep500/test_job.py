# SPDX-License-Identifier: Apache-2.0
"""What every process of `nnl bench distributed` does, without its launcher."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("onnx")

import nnl.deep500 as d5  # noqa: E402
from nnl.communicators import mpi, multi_process, nccl  # noqa: E402
from nnl.communicators.channel import Channel  # noqa: E402
from nnl.core.settings.context import Context  # noqa: E402
from nnl.deep500 import optimizers  # noqa: E402
from nnl.deep500.dataset import DataSet  # noqa: E402
from nnl.deep500.distributed import ConsistentDecentralized, job  # noqa: E402
from tests.cuda.strict_device import context  # noqa: E402
from tests.deep500 import models  # noqa: E402


class Carrier(Channel):
    """NCCL's place, where there is no GPU."""

    name = "nccl"

    def __init__(self, world, ranks):
        super().__init__()


def test_a_network_on_a_device_is_exchanged_by_nccl_and_moves_to_the_gpu_of_its_rank(monkeypatch):
    """The choice of the communicator alone: no NCCL and no GPU has run here."""
    monkeypatch.delenv("NNL_COMMUNICATOR", raising=False)
    monkeypatch.setenv(mpi.STARTED_BY[0], "1")
    channel = SimpleNamespace(agree=lambda call: None)
    ranks = {"rank": 1, "size": 2, "local_rank": 1, "local_size": 2}
    two = SimpleNamespace(one_node=True, channel=channel, **ranks)
    monkeypatch.setattr(multi_process, "world", lambda: two)
    monkeypatch.setattr(nccl, "NcclChannel", Carrier)
    monkeypatch.setattr("nnl.ext.cuda.get_device_count", lambda: 2)
    net = d5.network(models.lenet(), "nnl")
    net.context = context()
    c = job.talking(net)
    assert (c.communicator.backend, c.rank, c.size) == ("nccl", 1, 2)
    assert net.context.device_id == "1" and net.context.backend == context().backend


@pytest.mark.parametrize("backend", ["nnl:numpy", "reference"])
def test_networks_in_host_memory_keep_their_context(monkeypatch, backend):
    for name in (*mpi.STARTED_BY, "NNL_COMMUNICATOR"):
        monkeypatch.delenv(name, raising=False)
    net = d5.network(models.lenet(), backend)
    before = getattr(net, "context", None)
    c = job.talking(net)
    assert c.communicator.backend == "local" and isinstance(c.communicator.ctx, Context)
    assert getattr(net, "context", None) is before


def test_the_overhead_is_over_the_same_scheme_in_a_plain_loop(monkeypatch):
    for name in (*mpi.STARTED_BY, "NNL_COMMUNICATOR"):
        monkeypatch.delenv(name, raising=False)
    net = d5.network(models.lenet(), "reference")
    net.add_loss("scores")
    wrapped = ConsistentDecentralized(optimizers.GradientDescent(net), job.talking(net))
    steps, train = [], wrapped.train
    monkeypatch.setattr(wrapped, "train", lambda batch: steps.append(1) or train(batch))
    data = models.digits(8, 0)
    found = job.overhead(wrapped, DataSet(data, 4), steps=5)
    assert len(steps) == 2 * 6 and found["baseline"] == "plain loop"
    assert found["low_us"] <= found["overhead_us"] <= found["high_us"]
    assert job.overhead(wrapped, DataSet(data, 16)) == {}  # no batch to time

# SPDX-License-Identifier: Apache-2.0
"""A rank that dies, comes late or calls something else ends the job with an error, not a hang."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.communicators.ranks import finish, run, start

CASES = {
    # on rank 1, on the others, what must stand in the output
    "another call": (
        "comm.bcast(x, src=0)",
        "comm.all_reduce(x)",
        [
            r"CommunicatorError: rank 0 has come to call 2, all_reduce\(float32\[3\], "
            r"division=False\) in group 'world', but rank 1 to call 2, bcast\(float32\[3\], src",
            r"CommunicatorError: rank 1 has come to call 2, bcast\(float32\[3\], src=0\)",
            r"nnl: rank \d of 2 has failed, which ends the job",
        ],
    ),
    "another shape": (
        "comm.all_reduce(nn.NdArray(4))",
        "comm.all_reduce(x)",
        [r"rank 0 has come to call 2, all_reduce\(float32\[3\].* rank 1 to .*float32\[4\]"],
    ),
    "another list": (
        "comm.all_reduce([x] * 7)",
        "comm.all_reduce([x] * 8)",
        [r"all_reduce\(8 arrays of 24 elements, \w{8}, .* rank 1 to .*7 arrays of 21 elements"],
    ),
    "killed": (
        "os.kill(os.getpid(), 9)",
        "comm.all_reduce(x)",
        [
            "nnl: rank 1 was killed by SIGKILL",
            r"CommunicatorError: rank 0 waits in call 2, all_reduce\(.*: rank 1 has died "
            r"\(documentation: distributed#when-something-goes-wrong\)",
        ],
    ),
    "end of the script": (
        "raise SystemExit(0)",
        "comm.all_reduce(x)",
        [r"rank 0 has come to call 2, all_reduce.*, but rank 1 to the end of the script"],
    ),
    "exception": (
        "raise RuntimeError('out of luck')",
        "comm.all_reduce(x)",
        ["RuntimeError: out of luck\nnnl: rank 1 of 2 has failed, which ends the job"],
    ),
    "late": (
        "time.sleep(20)",
        "comm.all_reduce(x)",
        [
            r"CommunicatorError: rank 0 waits in call 2, all_reduce\(.*: "
            r"rank 1 did not come within 3 s \(NNL_COMMUNICATOR_TIMEOUT; documentation: "
            r"distributed#when-something-goes-wrong\)"
        ],
    ),
    "stopped": (
        "os.kill(os.getpid(), 19)",
        "comm.all_reduce(x)",
        [
            r"rank 0 waits in call 2, all_reduce\(.*: rank 1 did not come within 3 s; "
            r"rank 1 was stopped \(NNL_COMMUNICATOR_TIMEOUT",
            r'nnl: rank 1 is here:\n(.*\n)*  File ".*script.py", line \d+ in <module>',
        ],
    ),
    "killed during backward": (
        "os.kill(os.getpid(), 9)",
        "loss.backward(communicator_callbacks=comm.all_reduce_callback(w.grad, 10))",
        [
            r"CommunicatorError: rank 0 waits in call \d, all_reduce_callback\(bucket 1 of 1: "
            r"float32\[3\], division=False.*: rank 1 has died"
        ],
    ),
    "another group": (
        "comm.all_reduce(x, group='both')",
        "comm.all_reduce(x)",
        [
            r"rank 0 has come to call 3, all_reduce\(float32\[3\], division=False\) in group 'world"
            r"', but rank 1 to call 1, all_reduce\(float32\[3\], division=False\) in group 'both'",
            r"rank 1 has come to call 1, all_reduce\(.*'both', but rank 0 to call 3, all_reduce\(",
        ],
    ),
    "a callback": (
        "loss.backward(communicator_callbacks=comm.all_reduce_callback(w.grad, 10))",
        "comm.all_reduce(w.grad)",
        [
            r"rank 0 has come to call 2, all_reduce\(float32\[3\].*, but rank 1 to call 1, "
            r"all_reduce_callback\((order of|bucket 1 of 1)",
            r"rank 1 has come to call 1, all_reduce_callback\(.*, but rank 0 to call 2, all_reduce",
        ],
    ),
    "a callback on the other side": (
        "comm.all_reduce(w.grad)",
        "loss.backward(communicator_callbacks=comm.all_reduce_callback(w.grad, 10))",
        [
            r"rank 1 has come to call 2, all_reduce\(float32\[3\].*, but rank 0 to call 1, all_red",
            r"rank 0 has come to call 1, all_reduce_callback\(.*, but rank 1 to call 2, all_reduce",
        ],
    ),
}
QUICK = {"another call", "killed", "end of the script", "a callback"}


SLOW_ONES_LONG = [c if c in QUICK else pytest.param(c, marks=pytest.mark.long) for c in CASES]


def assert_the_job_ends(tmp_path: Path, case: str, between: str = "", **environment: Any) -> None:
    """With an error that names rank and call; `between` runs before the ranks part ways."""
    here, there, wanted = CASES[case]
    group = "comm.new_group(('both', [0, 1]))" if "group" in case else between
    code = f"""
    import os, time
    x = nn.NdArray(3)
    w = nn.Variable((3,), need_grad=True)
    loss = F.sum(w * 2)
    loss.forward()
    comm.all_reduce(x)
    {group}
    if rank == 1:
        {here}
    else:
        {there}
    """
    started = time.monotonic()
    environment["NNL_COMMUNICATOR_TIMEOUT"] = 3
    process = start(tmp_path, 2, code, launch=True, **environment)
    rc, _, err = finish(process, 40)
    assert rc != 0
    assert time.monotonic() - started < 30
    for pattern in wanted:
        assert re.search(pattern, err), err


@pytest.mark.parametrize("backend", ["shared", pytest.param("mpi", marks=pytest.mark.long)])
@pytest.mark.parametrize("case", SLOW_ONES_LONG)
def test_the_job_ends_with_an_error_that_names_rank_and_call(
    tmp_path: Path, case: str, backend: str
) -> None:
    memory = ""
    if case == "killed during backward":  # its memory is made by both
        memory = "comm.all_reduce_callback(w.grad, 10).begin([(w.grad, w.grad.spec)])"
    assert_the_job_ends(tmp_path, case, memory, NNL_COMMUNICATOR=backend)


def test_a_rank_that_fails_before_init_ends_the_job(tmp_path: Path) -> None:
    early = "import os\nif os.environ['PMI_RANK'] == '1': raise OSError('early')\n"
    process = start(tmp_path, 2, "", launch=True, before=early)
    rc, _, err = finish(process)
    assert rc != 0
    assert "OSError: early\nnnl: rank 1 of 2 has failed" in err


def test_after_a_disagreement_all_ranks_can_go_on(tmp_path: Path) -> None:
    code = """
    x = nn.NdArray(3)
    x.data = rank + 1
    for _ in range(2):
        try:
            comm.all_reduce(x if rank else nn.NdArray(2))
        except C.CommunicatorError as e:
            assert f"rank {rank} has come to call" in str(e)
        else:
            raise AssertionError
        assert (x.data == rank + 1).all()
    comm.all_reduce(x)
    assert (x.data == 3).all()
    """
    run(tmp_path, 2, code)


def test_all_can_go_on_after_a_callback_that_others_have_not_made(tmp_path: Path) -> None:
    """Immediately, with the records of the callback that nobody has read."""
    code = """
    import time
    w, v = (nn.Variable((n,), need_grad=True) for n in (3, 2))
    loss = F.sum(w * (rank + 1)) + F.sum(v)
    loss.forward()
    callback = comm.all_reduce_callback([w.grad, v.grad], 1)
    def step(instead=None):
        w.grad.zero(), v.grad.zero()
        if instead is not None and rank == instead:
            comm.bcast(w.grad, src=0)
        else:
            loss.backward(communicator_callbacks=callback)
    for instead in (0, 2, 1):  # at first, while they make memory, then between buckets
        started = time.monotonic()
        try:
            step(instead)
        except C.CommunicatorError as e:
            assert f"rank {rank} has come to" in str(e), str(e)
            assert rank != instead or "bcast(" in str(e) and "all_reduce_callback(" in str(e), e
        else:
            raise AssertionError
        assert time.monotonic() - started < 10
        comm.barrier()
        step()
        assert (w.g == 6).all() and (v.g == 3).all(), (w.g, v.g)
    """
    run(tmp_path, 3, code, NNL_COMMUNICATOR_TIMEOUT=30)


def test_a_wrong_timeout_is_an_error(tmp_path: Path) -> None:
    process = start(tmp_path, 2, "", NNL_COMMUNICATOR_TIMEOUT="soon")
    rc, _, err = finish(process)
    assert rc != 0
    assert "ValueError: NNL_COMMUNICATOR_TIMEOUT is 'soon', wanted a number of seconds > 0" in err


def test_too_little_shared_memory_is_an_error_on_every_rank(tmp_path: Path) -> None:
    code = """
    import resource
    free = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, free[1]))
    grads = [nn.NdArray(3), nn.NdArray(4)]
    grads[0].data = rank
    try:
        comm.all_reduce_callback(grads, 1).finish()
    except C.CommunicatorError as e:
        assert "bytes of shared memory: " in str(e) and "too large" in str(e)
        assert "NNL_COMMUNICATOR=mpi does without" in str(e)
    else:
        raise AssertionError
    assert (grads[0].data == rank).all()
    resource.setrlimit(resource.RLIMIT_FSIZE, free)
    comm.all_reduce_callback(grads, 1).finish()
    assert (grads[0].data == 1).all()
    """
    run(tmp_path, 2, code)

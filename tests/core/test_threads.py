# SPDX-License-Identifier: Apache-2.0
"""Modes, scopes and random streams belong to a thread."""

import threading

import numpy as np

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF


def in_thread(f):
    """What f returns in a thread of its own."""
    found = []
    thread = threading.Thread(target=lambda: found.append(f()))
    thread.start()
    thread.join()
    return found[0]


def modes():
    return nn.get_auto_forward(), nn.get_current_context().backend, F.relu(nn.Variable()).recompute


def test_new_threads_start_from_what_was_set():
    before = modes()
    context = nn.get_current_context()
    try:
        nn.set_auto_forward(True)
        nn.set_global_recompute(True)
        nn.set_default_context(nn.Context(["numpy:float"]))
        assert in_thread(modes) == modes() == (True, ["numpy:float"], True)
    finally:
        nn.set_auto_forward(False)
        nn.set_global_recompute(False)
        nn.set_default_context(context)
    assert in_thread(modes) == before


def test_with_blocks_hold_in_their_thread():
    outside = modes()
    with nn.auto_forward(), nn.recompute(), nn.context_scope(nn.Context(["numpy:float"])):
        assert in_thread(modes) == outside
    x = nn.Variable((2,), need_grad=True)
    with nn.no_grad():
        assert in_thread(lambda: F.relu(x).need_grad)
    with nn.parameter_scope("here"):
        scope = in_thread(nn.get_current_parameter_scope)
        assert scope is nn.parameter.root_scope is not nn.parameter.current_scope


def test_a_thread_that_has_begun_keeps_its_modes():
    begun, changed, found = threading.Event(), threading.Event(), []

    def look():
        found.append(modes())
        begun.set()
        changed.wait(10)
        found.append(modes())

    thread = threading.Thread(target=look)
    thread.start()
    begun.wait(10)
    nn.set_auto_forward(True)
    try:
        changed.set()
        thread.join()
    finally:
        nn.set_auto_forward(False)
    assert found[0] == found[1]


def test_a_thread_that_sets_a_mode_leaves_those_of_others():
    def other():
        nn.set_auto_forward(True)
        nn.set_auto_forward(False)
        nn.set_auto_forward(True)
        return nn.get_auto_forward()

    try:
        assert in_thread(other) and not nn.get_auto_forward()
    finally:
        nn.set_auto_forward(False)  # for the threads to come


def draw():
    with nn.auto_forward():
        return F.rand(shape=(4,)).d.copy()


def test_other_threads_do_not_move_a_random_stream():
    nn.seed(3)
    expected = [draw(), draw()]
    nn.seed(3)
    first = draw()
    others = [in_thread(draw) for _ in range(2)]
    np.testing.assert_array_equal([first, draw()], expected)
    assert len({a.tobytes() for a in (*expected, *others)}) == 4


def test_streams_of_unseeded_threads_follow_from_the_seed():
    drawn = []
    for seed in (3, 3, 4):
        nn.seed(seed)
        drawn.append(in_thread(draw))
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).all()


def test_a_seed_in_a_thread_gives_what_it_gives_outside():
    def initial():
        nn.seed(5)
        return nn.random.prng.rand(2).tolist(), draw().tolist()

    expected = initial()
    nn.seed(6)
    assert in_thread(initial) == expected
    assert nn.random.pseed == 6
    np.testing.assert_array_equal(nn.random.prng.rand(2), np.random.RandomState(6).rand(2))
    nn.seed(313)


def test_a_thread_that_was_not_seeded_goes_on_with_initial_values():
    nn.seed(313)
    drawn = [nn.random.prng.rand(), in_thread(lambda: nn.random.prng.rand()), nn.random.prng.rand()]
    np.testing.assert_array_equal(drawn, np.random.RandomState(313).rand(3))


def test_threads_that_ask_for_one_parameter_get_the_same():
    for i in range(20):
        barrier, found = threading.Barrier(4), []

        def make(i=i, barrier=barrier, found=found):
            barrier.wait(10)
            x = nn.Variable((2, 3))
            PF.affine(x, 2, name=f"layer{i}")
            found.append(nn.get_parameters()[f"layer{i}/affine/W"])

        threads = [threading.Thread(target=make) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len({id(v) for v in found}) == 1 and len(found) == 4

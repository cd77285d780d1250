# SPDX-License-Identifier: Apache-2.0
"""Updates apart from gradients: several critic steps a generator step, and sums over copies."""

from __future__ import annotations

import numpy as np
import pytest

import nnl as nn
import nnl.communicators as C
import nnl.functions as F
import nnl.solvers as S
from nnl.ext import native
from nnl.graph.plan.memory import computed_in_place
from nnl.workspace import Function, Tensor, Updater, Workspace, gradients


def kept(workspace, name, value):
    value = np.asarray(value, np.float32)
    t = Tensor(workspace, name, value.shape)
    workspace.keep(t, value)
    return t


def dense(x, w, b):
    return x.make("affine", F.affine, w, b)


def test_wasserstein_gan_with_several_steps_of_its_critic():
    """The generator moves its samples onto the data; the critic, with clipped weights, learns five
    times for each of its steps, by functions and updaters of their own on shared tensors."""
    rng = np.random.default_rng(0)
    with Workspace({}) as space:
        real, noise = (Tensor(space, n, (None, 2)) for n in ("real", "noise"))
        sizes = {"w1": (2, 16), "b1": (16,), "w2": (16, 1)}
        critic = {
            k: kept(space, f"critic/{k}", rng.uniform(-0.1, 0.1, s)) for k, s in sizes.items()
        }
        shift = {
            "w": kept(space, "generator/w", np.eye(2)),
            "b": kept(space, "generator/b", [0, 0]),
        }

        def score(x):
            hidden = dense(x, critic["w1"], critic["b1"]).make("relu", F.relu)
            return hidden.make("affine", F.affine, critic["w2"]).make("mean", F.mean)

        fake = dense(noise, shift["w"], shift["b"])
        loss = score(fake) - score(real)
        learned = list(critic.values())
        of_critic = Updater(
            lambda: S.RMSprop(0.01), list(zip(learned, gradients([loss], learned), strict=True))
        )
        moved = list(shift.values())
        minus = -score(fake)
        of_generator = Updater(
            lambda: S.RMSprop(0.02), list(zip(moved, gradients([minus], moved), strict=True))
        )
        train_critic = Function([real, noise], [loss], updater=of_critic)
        clip = Function([], [], {t: t.make("clip", lambda v: F.clip_by_value(v, -0.1, 0.1))
                                 for t in learned})  # fmt: skip
        train_generator = Function([noise], [minus], updater=of_generator)
        before = {k: space.fetch(t) for k, t in shift.items()}

        def samples(n):
            return rng.normal(size=(n, 2)) * 0.3

        center = np.array([1.5, -1.0])
        for step in range(120):
            for _ in range(5):
                train_critic(samples(64) + center, samples(64))
                clip()
            assert all(np.abs(space.fetch(t)).max() <= np.float32(0.1) for t in learned)
            if step == 0:  # the critic's steps change nothing of the generator
                assert all((space.fetch(shift[k]) == v).all() for k, v in before.items())
            train_generator(samples(64))
        made = Function([noise], [fake])(samples(512))[0]
        assert np.abs(made.mean(0) - center).max() < 0.3
        assert set(space.scope) == {"critic", "generator"}
        assert len(train_critic.plans) == len(train_generator.plans) == len(clip.plans) == 1


def copy_of_a_model():
    space = Workspace({})
    with space:
        w, x = kept(space, "w", [[1.0], [2.0]]), Tensor(space, "x", (None, 2))
        loss = (x.make("affine", F.affine, w) ** 2).make("mean", F.mean)
        updater = Updater(lambda: S.Momentum(0.05, 0.9), [(w, gradients([loss], [w])[0])])
        return space, Function([x], [loss], updater=updater, update=False), updater


def test_an_all_reduce_between_gradients_and_updates():
    """Two copies with half of a batch each do what one does with all of it: neither the program of
    the gradients nor that of the update knows of it."""
    copies, (space, whole, updater) = [copy_of_a_model() for _ in range(2)], copy_of_a_model()
    comm = C.DataParallelCommunicator(nn.get_current_context())
    for s, _, _ in copies:
        comm.add_context_and_parameters((nn.get_current_context(), {"w": s.parameter("w")}))
    comm.init()
    batch = np.random.default_rng(1).normal(size=(8, 2))
    for _ in range(3):
        for (_, f, _), half in zip(copies, (batch[:4], batch[4:]), strict=True):
            f(half)
        comm.allreduce(division=True)
        for _, _, u in copies:
            u.apply()
        whole(batch)
        updater.apply()
    for s, _, _ in copies:
        np.testing.assert_allclose(s.fetch("w"), space.fetch("w"), rtol=1e-5)
    assert np.abs(space.fetch("w") - [[1], [2]]).max() > 0.1


def test_an_anchor_holds_what_a_gradient_needs_until_it_is_removed():
    with Workspace({}) as space:
        x = Tensor(space, "x", (4,))
        op = x.make("tanh", F.tanh).operator
        space.feed("x", [1, 2, 3, 4])
        space.run(op)
        (g,) = space.gradient(op, [1, 0, 0, 1])
        np.testing.assert_allclose(g, [1 - np.tanh(1) ** 2, 0, 0, 1 - np.tanh(4) ** 2], rtol=1e-4)
        space.release(op)
        with pytest.raises(KeyError, match="Workspace.gradient: 'tanh' has not run"):
            space.gradient(op)
        assert space.fetch("tanh").shape == (4,)  # its result is a value as before


def test_related_models_have_their_parameters_once():
    """A network to train and one to validate with: one store for both, and two programs."""
    with Workspace({}) as space:
        w, b = kept(space, "w", np.ones((8, 8))), kept(space, "b", np.zeros(8))
        x = Tensor(space, "x", (None, 8))
        y = dense(x, w, b).make("dropout", F.dropout).make("mean", F.mean)
        train = Function([x], [y], {b: b + 1})
        validate = Function([x], [dense(x, w, b).make("mean", F.mean)])
        assert len(space.scope) == 2
        train(np.ones((4, 8)))
        assert validate(np.ones((2, 8)))[0] == 9


def times(new, a, b):
    return new * 3.0


CASES = ["momentum", "swapped", "read later", "returned", "read twice", "written twice"]


@pytest.mark.parametrize("case", CASES)
def test_next_values_are_computed_where_they_are_kept(case):
    with Workspace({}) as workspace:
        start = np.random.default_rng(3).normal(size=(3, 700)).astype(np.float32)
        a, b, x = (Tensor(workspace, n, (700,)) for n in "abx")
        workspace.keep(a, start[0]), workspace.keep(b, start[1])
        # next values, what is returned, and how many of a and b are written where they are
        f, g, count = {
            "momentum": (lambda a, b, x: (a - 0.1 * (b * 0.9 + x), b * 0.9 + x), times, 2),
            "swapped": (lambda a, b, x: (b * 2.0, a * 0.5 + x), times, 1),
            "read later": (lambda a, b, x: (a + x, b + x), lambda new, a, b: new * a + b, 2),
            "returned": (lambda a, b, x: (a + x, b * x), lambda new, a, b: new, 1),
            "read twice": (lambda a, b, x: (a * 0.5 + x, b + x), lambda new, a, b: new + new, 2),
            "written twice": (lambda a, b, x: (a + x,) * 2, times, 1),
        }[case]
        new = f(a, b, x)
        step = Function([x], [g(new[0], a, b)], updates={a: new[0], b: new[1]})
        held = start[:2].copy()
        for i in range(3):
            given = start[2] + i
            made = f(*held, given)
            got, wanted = step(given)[0], g(made[0], *held)
            held = np.stack(made)
            found = got, workspace.fetch(a), workspace.fetch(b)
            for v, w in zip(found, (wanted, *held), strict=True):
                np.testing.assert_allclose(v, w, rtol=1e-5, atol=1e-5)
        plan = step._latest().plan
        homes = set(plan.home.values())
        assert len(homes) == (count if native.library() else 0)
        plan.program.parts_of_others |= homes  # of which another array may read the same memory
        assert computed_in_place(plan.program, homes, set()) == {}

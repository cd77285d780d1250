# SPDX-License-Identifier: Apache-2.0
"""Reinforcement with PPO: a policy learns to keep up a pole, from many carts at once.

CartPole-v1 of gymnasium: the largest return is 500. Advantages are those of GAE; a step may change
the policy only so far from the one that has acted. Beside: random actions. Source: Schulman et al.,
arXiv:1707.06347. Expected (mean return of 20 episodes, without randomness):

    {"return": 500.0, "return by chance": 23.45, "seconds": 76}
"""

import numpy as np
from common import given, main
from reinforcement import descend, mean_return, solver_of, tower

import nnl as nn
import nnl.functions as F

CARTS, ROUND, EPOCHS, BATCH = 8, 64, 6, 128
DISCOUNT, TRACE, CLIP, ENTROPY = 0.98, 0.9, 0.2, 0.01


def said(state):
    """Logarithms of the probabilities of actions, and the value of a state."""
    with nn.parameter_scope("agent"):
        return F.log_softmax(tower(state, 2, "policy")), tower(state, 1, "value")


def loss_of(state, action, before, advantage, gain):
    log_p, value = said(state)
    kept = F.sum(log_p * F.one_hot(F.reshape(action, (-1, 1)), (2,)), axis=1)
    ratio = F.exp(kept - before)
    gained = F.minimum2(ratio * advantage, F.clip_by_value(ratio, 1 - CLIP, 1 + CLIP) * advantage)
    entropy = -F.sum(F.exp(log_p) * log_p, axis=1)
    error = F.huber_loss(F.reshape(value, gain.shape), gain)
    return F.mean(0.5 * error - gained - ENTROPY * entropy)


def advantages(rewards, values, ends):
    """GAE of (ROUND, CARTS), with values of one state more."""
    found, later = np.zeros_like(rewards), np.zeros(rewards.shape[1])
    for i in reversed(range(len(rewards))):
        surprise = rewards[i] + DISCOUNT * values[i + 1] * (1 - ends[i]) - values[i]
        found[i] = later = surprise + DISCOUNT * TRACE * (1 - ends[i]) * later
    return found


def run(steps=300):
    import gymnasium

    again = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    envs = gymnasium.make_vec("CartPole-v1", CARTS, "sync", vector_kwargs=again)
    rng, ask = np.random.default_rng(0), nn.compile(said)
    state, _ = envs.reset(seed=0)
    ask(given(state))
    solver = solver_of("agent", 1e-3)
    learn = nn.compile(lambda *batch: descend(loss_of(*batch), solver))
    for i in range(steps):
        solver.set_learning_rate(1e-3 * (1 - i / steps))
        rows = []
        for _ in range(ROUND):
            log_p, value = (y.d for y in ask(given(state)))
            action = (rng.random(CARTS) < np.exp(log_p[:, 1])).astype(int)
            later, reward, end, cut, _ = envs.step(action)
            rows.append(
                (state, action, log_p[range(CARTS), action], reward, value[:, 0], end | cut)
            )
            state = later
        states, actions, before, rewards, values, ends = map(np.array, zip(*rows, strict=True))
        last = ask(given(state))[1].d[:, 0]
        gained = advantages(rewards, np.array([*values, last]), ends)
        flat = [a.reshape(-1, *a.shape[2:]).astype(np.float32)
                for a in (states, actions, before, gained, gained + values)]  # fmt: skip
        flat[3] = (flat[3] - flat[3].mean()) / (flat[3].std() + 1e-6)
        for _ in range(EPOCHS):
            for part in rng.permutation(CARTS * ROUND).reshape(-1, BATCH):
                learn(*(given(a[part]) for a in flat))

    env = gymnasium.make("CartPole-v1")
    single = nn.compile(said)
    reached = mean_return(env, lambda s: int(single(given(s[None]))[0].d.argmax()))
    return {"return": reached, "return by chance": mean_return(env, lambda s: int(rng.integers(2)))}


if __name__ == "__main__":
    main(run)

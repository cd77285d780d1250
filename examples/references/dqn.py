# SPDX-License-Identifier: Apache-2.0
"""Reinforcement with DQN: a pole on a cart is kept up, by values of states and actions.

CartPole-v1 of gymnasium: the largest return is 500. Values learn from a memory of transitions;
the target takes its action by the network and its value by an older one (double DQN). Beside:
random actions. Source: Mnih et al., arXiv:1312.5602, and van Hasselt et al., arXiv:1509.06461.
Expected (mean return of 20 episodes):

    {"return": 218.25, "return by chance": 18.6, "seconds": 55}
"""

import numpy as np
from common import given, main
from reinforcement import Memory, descend, follow, mean_return, solver_of, tower

import nnl as nn
import nnl.functions as F

DISCOUNT, BATCH, ROUND = 0.99, 64, 256


def chosen(values, actions):
    """The value of one action of each row."""
    return F.sum(values * F.one_hot(F.reshape(actions, (-1, 1)), (values.shape[1],)), axis=1)


def loss_of(state, action, reward, later, end):
    best = F.max(tower(later, 2, "net"), axis=1, only_index=True)
    target = reward + DISCOUNT * (1 - end) * chosen(tower(later, 2, "old"), best)
    return F.mean(F.huber_loss(chosen(tower(state, 2, "net"), action), F.unlink(target)))


def run(steps=50000):
    import gymnasium

    env, rng, memory = gymnasium.make("CartPole-v1"), np.random.default_rng(0), Memory(50_000)
    values = nn.compile(lambda s: tower(s, 2, "net"))
    values(given(np.zeros((1, 4), np.float32)))
    tower(given(np.zeros((1, 4), np.float32)), 2, "old")
    follow("old", "net", 1.0)
    solver = solver_of("net", 2.3e-3)

    @nn.compile
    def learn(*batch):
        return descend(loss_of(*batch), solver)

    def act(state):
        return int(values(given(state[None])).d.argmax())

    state, _ = env.reset(seed=0)
    for i in range(steps):
        explore = rng.random() < max(0.05, 1 - i / (0.2 * steps))
        action = int(rng.integers(2)) if explore else act(state)
        later, reward, end, cut, _ = env.step(action)
        memory.add(state, action, reward, later, end)
        state = env.reset()[0] if end or cut else later
        if i % ROUND == ROUND - 1 and i > 1000:
            for _ in range(ROUND // 2):
                learn(*map(given, memory.some(rng, BATCH)))
            follow("old", "net", 1.0)
    by_chance = mean_return(env, lambda state: int(rng.integers(2)))
    return {"return": mean_return(env, act), "return by chance": by_chance}


if __name__ == "__main__":
    main(run)

# SPDX-License-Identifier: Apache-2.0
"""Reinforcement with SAC: a pendulum is swung up and held, by torques of any size.

Pendulum-v1 of gymnasium: a return is minus the sum of costs of 200 steps, and good ones are near
-150. Two networks value actions, the policy seeks those that both value and stays as random as the
temperature asks. Beside: random torques. Source: Haarnoja et al., arXiv:1812.05905. Expected (mean
return of 20 episodes, without randomness):

    {"return": -121.4697, "return by chance": -1177.0211, "seconds": 59}
"""

import numpy as np
from common import given, main
from reinforcement import Memory, descend, follow, mean_return, solver_of, tower

import nnl as nn
import nnl.functions as F
from nnl.parametric_functions import get_parameter_or_create
from nnl.parametric_functions.initializer import ConstantInitializer

DISCOUNT, BATCH, FOLLOW, TORQUE = 0.98, 128, 0.01, 2.0


def policy(state, noise):
    """Actions in [-1, 1] of standard normal noise (B, 1), and their log densities."""
    both = tower(state, 2, "policy")
    mean, spread = both[:, :1], F.clip_by_value(both[:, 1:], -5, 1)
    raw = mean + F.exp(spread) * noise
    normal = -0.5 * noise**2 - spread - 0.5 * np.log(2 * np.pi)
    # ln(1 - tanh(x)^2), without overflow
    return F.tanh(raw), normal - 2 * (np.log(2) - raw - F.softplus(-2 * raw))


def value(state, action, name):
    """The smaller of what two networks say, and both."""
    with nn.parameter_scope(name):
        x = F.concatenate(state, action, axis=1)
        a, b = tower(x, 1, "a"), tower(x, 1, "b")
    return F.minimum2(a, b), a, b


def temperature():
    with nn.parameter_scope("temperature"):
        return get_parameter_or_create("log", (1, 1), ConstantInitializer(np.log(0.2)))


def loss_of_value(state, action, reward, later, end, noise, _):
    b = state.shape[0]
    then, log_p = policy(later, noise)
    hoped = value(later, then, "old")[0] - F.exp(temperature()) * log_p
    target = F.unlink(F.reshape(reward + DISCOUNT * (1 - end) * F.reshape(hoped, (b,)), (b, 1)))
    _, one, other = value(state, action, "value")
    return F.mean(F.squared_error(one, target) + F.squared_error(other, target))


def loss_of_policy(state, noise):
    action, log_p = policy(state, noise)
    heat = temperature()
    seek = F.mean(F.unlink(F.exp(heat)) * log_p - value(state, action, "value")[0])
    return seek - F.mean(heat * F.unlink(log_p - 1.0))  # as random as one bell of width e^-1


def run(steps=4000):
    import gymnasium

    env, rng, memory = gymnasium.make("Pendulum-v1"), np.random.default_rng(0), Memory(20_000)
    state, _ = env.reset(seed=0)
    ask = nn.compile(lambda s, noise: policy(s, noise)[0])
    row = given(state[None])
    for name in ("value", "old"):
        value(row, ask(row, given(np.zeros((1, 1), np.float32))), name)
    follow("old", "value", 1.0)
    temperature()
    solvers = {n: solver_of(n, 2e-3) for n in ("value", "policy", "temperature")}

    @nn.compile
    def learn(state, *rest):
        descend(loss_of_value(state, *rest), solvers["value"])
        loss = loss_of_policy(state, rest[-1])
        solvers["policy"].zero_grad()
        solvers["temperature"].zero_grad()
        loss.backward(clear_buffer=True)
        solvers["policy"].update()
        solvers["temperature"].update()
        return loss

    def act(state, noise=0.0):
        return TORQUE * ask(given(state[None]), given(np.full((1, 1), noise, np.float32))).d[0]

    def by_chance(state):
        return rng.uniform(-TORQUE, TORQUE, 1).astype(np.float32)

    for i in range(steps):
        action = by_chance(state) if i < 500 else act(state, rng.normal())
        later, reward, end, cut, _ = env.step(action)
        memory.add(state, action / TORQUE, float(reward) / 10, later, end)
        state = env.reset()[0] if end or cut else later
        if i >= 500:
            noise = rng.normal(size=(2, BATCH, 1)).astype(np.float32)
            learn(*map(given, [*memory.some(rng, BATCH), *noise]))
            follow("old", "value", FOLLOW)
    return {"return": mean_return(env, act), "return by chance": mean_return(env, by_chance)}


if __name__ == "__main__":
    main(run)

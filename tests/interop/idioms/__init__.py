# SPDX-License-Identifier: Apache-2.0
"""The idioms of NNabla's example programs, each as a short script that fills `outputs`.

They are written as those programs are: floats for numbers of maps, monitors that read before
anything was computed, states carried through arrays that nobody wrote, parameters copied array by
array. What would be random comes from `uniform` and `integers`, so that numbers can be compared.
"""

from tests.interop.idioms import generative, images, learning, sequences

TOOLS = """
def uniform(seed, *shape):
    return np.random.RandomState(seed).uniform(-1, 1, shape).astype(np.float32)

def integers(seed, high, *shape):
    return np.random.RandomState(seed).randint(0, high, shape)

def train(loss, solver, feed, steps=6, decay=0.0, name="loss"):
    curve = []
    for step in range(steps):
        feed(step)
        loss.forward(clear_no_need_grad=True)
        solver.zero_grad()
        loss.backward(clear_buffer=True)
        if decay:
            solver.weight_decay(decay)
        solver.update()
        curve.append(float(loss.d))
    outputs[name] = np.array(curve)
"""

SCRIPTS = {
    **images.SCRIPTS,
    **generative.SCRIPTS,
    **sequences.SCRIPTS,
    **learning.SCRIPTS,
}

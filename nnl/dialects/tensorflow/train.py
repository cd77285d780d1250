# SPDX-License-Identifier: Apache-2.0
"""tf.train: optimizers, learning rates that decay, moving averages."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.values.values import is_var, var
from nnl.dialects.tensorflow.control import flatten
from nnl.dialects.tensorflow.graph import GraphKeys, control_dependencies, get_default_graph
from nnl.dialects.tensorflow.operation import Operation, convert
from nnl.dialects.tensorflow.shapes import merged
from nnl.dialects.tensorflow.table import N, cast, defined, tensor
from nnl.dialects.tensorflow.variables import Variable, global_variables, group, trainable_variables
from nnl.workspace.tensor import gradient_values

# Results that no gradient goes through, besides those that are no numbers with fractions.
_FLAT = {"StopGradient", "Shape", "ZerosLike", "OnesLike", "Floor", "Ceil", "Round", "Rint"}


def _connected(ys, stop):
    """All tensors that the gradients of some reach."""
    found = set()
    todo = list(ys)
    while todo:
        t = todo.pop()
        if t in found or t.dtype.kind != "f":
            continue
        found.add(t)
        if t.operator is not None and t.operator.type not in _FLAT and t not in stop:
            todo += t.operator.tensors
    return found


def gradients(
    ys, xs, grad_ys=None, name="gradients",
    colocate_gradients_with_ops=False, gate_gradients=False,
    aggregation_method=None, stop_gradients=None,
):  # fmt: skip
    """Gradients of the sum of ys with respect to each x; None where nothing of it depends on x."""
    ys = [tensor(y) for y in (ys if isinstance(ys, (list, tuple)) else [ys])]
    given = xs if isinstance(xs, (list, tuple)) else [xs]
    stop = set(stop_gradients or ())
    reached = _connected(ys, stop)
    wrt = [x for x in dict.fromkeys(given) if x in reached]
    if not wrt:
        return [None] * len(given)
    starts = [] if grad_ys is None else grad_ys if isinstance(grad_ys, (list, tuple)) else [grad_ys]
    starts = [tensor(g, y.dtype) for g, y in zip(starts, ys, strict=bool(starts))]
    made = Operation(
        "gradients", partial(gradient_values, len(ys), len(wrt)), (*ys, *wrt, *starts),
        f"{name}/grad", count=len(wrt), constant=False, shapes=[x.sizes for x in wrt],
        dtypes=[x.dtype for x in wrt],
    )  # fmt: skip
    made.wrt = (*wrt, *stop)
    of = dict(zip(wrt, made.outputs, strict=True))
    return [of.get(x) for x in given]


# ---- optimizers: for each the next values of a variable and of what is kept for it ----


def _times(x, scale):
    """A product with a number that is known, or is computed."""
    if not is_var(scale):
        return F.mul_scalar(x, float(scale))
    return F.mul2(x, F.broadcast(F.reshape(scale, (1,) * x.ndim), x.shape))


def _mix(old, new, rate):
    return _times(old, rate) + _times(new, 1 - rate)


def _descent(s, v, g, rate):
    return (v - _times(g, rate),)


def _momentum(s, v, g, rate, m):
    m = _times(m, s.momentum) + g
    return v - _times(g + _times(m, s.momentum) if s.use_nesterov else m, rate), m


def _adam(s, v, g, rate, m, r):
    m, r = _mix(m, g, s.beta1), _mix(r, g * g, s.beta2)
    return v - _times(m, rate) / (F.pow_scalar(r, 0.5) + s.epsilon), m, r


def _rmsprop(s, v, g, rate, r, *rest):
    *mean, m = rest
    r, mean = _mix(r, g * g, s.decay), [_mix(x, g, s.decay) for x in mean]
    spread = r - mean[0] * mean[0] if mean else r
    m = _times(m, s.momentum) + _times(g, rate) * F.pow_scalar(spread + s.epsilon, -0.5)
    return v - m, r, *mean, m


def _adagrad(s, v, g, rate, r):
    r = r + g * g
    return v - _times(g, rate) * F.pow_scalar(r, -0.5), r


def _adadelta(s, v, g, rate, r, u):
    r = _mix(r, g * g, s.rho)
    d = g * F.pow_scalar(u + s.epsilon, 0.5) * F.pow_scalar(r + s.epsilon, -0.5)
    return v - _times(d, rate), r, _mix(u, d * d, s.rho)


def _ftrl(s, v, g, rate, n, z):
    power, l1, l2 = (
        s.learning_rate_power,
        s.l1_regularization_strength,
        s.l2_regularization_strength,
    )
    over = F.pow_scalar(rate if is_var(rate) else var(np.float32(rate)), -1.0)
    more = n + g * g
    old, new = F.pow_scalar(n, -power), F.pow_scalar(more, -power)
    z = z + g - _times((new - old) * v, over)
    w = (_times(F.sign(z, alpha=0.0), l1) - z) / (_times(new, over) + 2 * l2)
    return F.where(F.greater_scalar(F.abs(z), l1), w, F.mul_scalar(w, 0.0)), more, z


class Optimizer:
    """Makes operations that change variables so that a loss becomes smaller."""

    settings = {"learning_rate": 0.001}  # arguments and their defaults
    slots = ()  # what is kept for each variable: its name, and where it begins
    rule = staticmethod(_descent)

    def __init__(self, *args, use_locking=False, name=None, **given):
        kind = type(self).__name__.removesuffix("Optimizer")
        given |= dict(zip(self.settings, args, strict=False))
        if not set(given) <= set(self.settings):
            raise TypeError(f"{kind}: got {sorted(set(given) - set(self.settings))}")
        self.s = SimpleNamespace(**{**self.settings, **given})
        self._name = name or kind
        self._slots, self._own = {}, []
        centred = [("mg", 0.0)] * getattr(self.s, "centered", False)
        slots = [*self.slots[:1], *centred, *self.slots[1:]]
        first = getattr(self.s, "initial_accumulator_value", 0.0)
        self.slots = [(k, first if start is None else start) for k, start in slots]

    def minimize(self, loss, global_step=None, var_list=None, gate_gradients=None,
                 aggregation_method=None, colocate_gradients_with_ops=False, name=None,
                 grad_loss=None):  # fmt: skip
        """The operation that does one step."""
        pairs = self.compute_gradients(loss, var_list, grad_loss=grad_loss)
        if all(g is None for g, _ in pairs):
            raise ValueError(
                "No gradients provided for any variable, check your graph for ops that do not "
                f"support gradients, between variables {[v.name for _, v in pairs]} and loss {loss}"
            )
        return self.apply_gradients(pairs, global_step, name)

    def compute_gradients(self, loss, var_list=None, grad_loss=None, **_):
        """(gradient, variable) for each variable; the gradient None where there is none."""
        those = trainable_variables() if var_list is None else flatten(var_list)
        if not those:
            raise ValueError("No variables to optimize.")
        return list(zip(gradients(loss, those, grad_loss), those, strict=True))

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """The operation that changes variables by gradients."""
        every = list(grads_and_vars)
        pairs = [(tensor(g), v) for g, v in every if g is not None]
        if not pairs:
            names = [v.name for _, v in every]
            raise ValueError(f"No gradients provided for any variable: {names}.")
        graph, label, rate = get_default_graph(), name or self._name, self.s.learning_rate
        with control_dependencies(None):
            rate = self._rate(convert(rate() if callable(rate) else rate, np.float32))
            slots = {v: [self._slot(v, k, start) for k, start in self.slots] for _, v in pairs}
        done = []
        with graph.name_scope(label):
            for g, v in pairs:
                if merged(g.sizes, v.sizes) is False:
                    raise ValueError(f"Shapes of {v.name} {v.shape} and its gradient {g.shape}")
                targets = [v, *slots[v]]
                done.append(Operation(
                    f"Apply{type(self).__name__.removesuffix('Optimizer')}",
                    partial(self.rule, self.s), (v, g, rate, *slots[v]), f"update_{v.label}/Apply",
                    constant=False, count=len(targets), writes=targets,
                    shapes=[t.sizes for t in targets], dtypes=[t.dtype for t in targets],
                ))  # fmt: skip
            with graph.control_dependencies(done):
                done += self._finish()
            if global_step is not None:
                with graph.control_dependencies(done):
                    done.append(global_step.assign_add(1, name="global_step").operator)
        made = group(*done, name=label)
        graph.add_to_collection(GraphKeys.TRAIN_OP, made)
        return made

    def _rate(self, rate):
        """The rate of this step; powers of betas that Adam keeps undo the bias of its moments."""
        betas = [getattr(self.s, k) for k in ("beta1", "beta2") if hasattr(self.s, k)]
        if betas and not self._own:
            with get_default_graph().name_scope(None):
                self._own = [
                    Variable(np.float32(b), False, name=f"beta{i}_power")
                    for i, b in enumerate(betas, 1)
                ]
        if not betas:
            return rate
        one, two = self._own
        return N.sqrt(1.0 - two) / (1.0 - one) * rate

    def _finish(self):
        betas = [getattr(self.s, f"beta{i}") for i, _ in enumerate(self._own, 1)]
        return [v.assign(v * b).operator for v, b in zip(self._own, betas, strict=True)]

    def _slot(self, v, kind, start):
        held = self._slots.setdefault(kind, {})
        if v not in held:
            with get_default_graph().name_scope(None):
                first = np.full(v.sizes, start, v.dtype)
                held[v] = Variable(first, False, name=f"{v.label}/{self._name}")
        return held[v]

    def get_slot(self, var, name):
        """The variable that the optimizer keeps for another, None if it keeps none."""
        return self._slots.get(name, {}).get(var)

    def get_slot_names(self):
        """Names of what it keeps for variables."""
        return sorted(self._slots)

    def variables(self):
        """All that it keeps."""
        return [*self._own, *[v for held in self._slots.values() for v in held.values()]]

    def get_name(self):
        """Its name."""
        return self._name


def _optimizer(kind, rule, text, slots=(), **settings):
    settings.setdefault("learning_rate", None)
    ordered = {"learning_rate": settings.pop("learning_rate"), **settings}
    body = {"rule": staticmethod(rule), "slots": slots, "settings": ordered, "__doc__": text}
    return type(f"{kind}Optimizer", (Optimizer,), {**body, "__module__": __name__})


GradientDescentOptimizer = _optimizer("GradientDescent", _descent, r"$v - \eta g$.")
MomentumOptimizer = _optimizer(
    "Momentum", _momentum, r"$m' = \mu m + g$; $v - \eta m'$; Nesterov: $v - \eta (g + \mu m')$.",
    (("momentum", 0.0),), momentum=None, use_nesterov=False,
)  # fmt: skip
AdamOptimizer = _optimizer(
    "Adam", _adam, r"$v - \eta \sqrt{1-\beta_2^t} / (1-\beta_1^t)\, m / (\sqrt s + \epsilon)$.",
    (("m", 0.0), ("v", 0.0)), learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8,
)  # fmt: skip
RMSPropOptimizer = _optimizer(
    "RMSProp", _rmsprop, r"$m' = \mu m + \eta g / \sqrt{s + \epsilon}$; $v - m'$; centered: s less "
    "the square of the mean gradient.",
    (("rms", 1.0), ("momentum", 0.0)), decay=0.9, momentum=0.0, epsilon=1e-10, centered=False,
)  # fmt: skip
AdagradOptimizer = _optimizer(
    "Adagrad", _adagrad, r"$s' = s + g^2$; $v - \eta g / \sqrt{s'}$.", (("accumulator", None),),
    initial_accumulator_value=0.1,
)  # fmt: skip
AdadeltaOptimizer = _optimizer(
    "Adadelta", _adadelta, r"$d = g \sqrt{u + \epsilon} / \sqrt{s + \epsilon}$; $v - \eta d$.",
    (("accum", 0.0), ("accum_update", 0.0)), learning_rate=0.001, rho=0.95, epsilon=1e-8,
)  # fmt: skip
FtrlOptimizer = _optimizer(
    "Ftrl", _ftrl, "Follow the regularized leader: McMahan et al., Ad Click Prediction: a View "
    "from the Trenches, KDD 2013.", (("accum", None), ("linear", 0.0)), learning_rate_power=-0.5,
    initial_accumulator_value=0.1, l1_regularization_strength=0.0, l2_regularization_strength=0.0,
)  # fmt: skip


# ---- steps, and rates that follow them ----


def get_global_step(graph=None):
    """The variable that counts steps, None if there is none."""
    found = (graph or get_default_graph()).get_collection(GraphKeys.GLOBAL_STEP)
    return found[0] if found else None


def create_global_step(graph=None):
    """A new variable that counts steps."""
    keys = [GraphKeys.GLOBAL_VARIABLES, GraphKeys.GLOBAL_STEP]
    return Variable(np.int64(0), False, keys, name="global_step")


def get_or_create_global_step(graph=None):
    """The variable that counts steps."""
    found = get_global_step(graph)
    return create_global_step() if found is None else found


def global_step(sess, global_step_tensor):
    """How many steps there were."""
    return int(sess.run(global_step_tensor))


def _part(step, over, whole=False):
    p = cast(step, np.float32) / np.float32(over)
    return N.floor(p) if whole else p


def _decay(f):
    """A rate times a function of the part of the steps that is over, and of a number."""
    return lambda learning_rate, global_step, decay_steps, decay_rate, staircase=False, name=None: (
        convert(learning_rate, np.float32)
        * f(_part(global_step, decay_steps, staircase), float(decay_rate))
    )


def polynomial_decay(learning_rate, global_step, decay_steps, end_learning_rate=0.0001, power=1.0,
                     cycle=False, name=None):  # fmt: skip
    r"""$(\eta - \eta_T)(1 - t/T)^p + \eta_T$, T times more where it starts again."""
    p = _part(global_step, decay_steps)
    p = p / N.maximum(N.ceil(p), 1.0) if cycle else N.minimum(p, 1.0)
    span = convert(learning_rate, np.float32) - np.float32(end_learning_rate)
    return span * (1.0 - p) ** power + end_learning_rate


def cosine_decay(learning_rate, global_step, decay_steps, alpha=0.0, name=None):
    r"""$\eta ((1 - \alpha) (1 + \cos(\pi t/T)) / 2 + \alpha)$."""
    wave = 0.5 * (1.0 + N.cos(N.minimum(_part(global_step, decay_steps), 1.0) * np.pi))
    return ((1 - alpha) * wave + alpha) * convert(learning_rate, np.float32)


def piecewise_constant(x, boundaries, values, name=None):
    """values[i] up to boundaries[i], the last one after them."""
    x = tensor(x)
    steps = zip(boundaries, values, values[1:], strict=False)
    over = [cast(N.greater(x, b), np.float32) * float(w - v) for b, v, w in steps]
    return N.add_n([*over, np.float32(values[0])])


DECAYS = defined(
    {
        "exponential_decay": _decay(lambda p, r: N.pow(np.float32(r), p)),
        "natural_exp_decay": _decay(lambda p, r: N.exp(p * -r)),
        "inverse_time_decay": _decay(lambda p, r: 1.0 / (1.0 + p * r)),
    }
)


class ExponentialMovingAverage:
    r"""$a \leftarrow d a + (1 - d) v$; d is at most $(1 + n) / (10 + n)$ after n updates."""

    def __init__(self, decay, num_updates=None, zero_debias=False,
                 name="ExponentialMovingAverage"):  # fmt: skip
        if zero_debias:
            raise NotImplementedError("ExponentialMovingAverage: zero_debias")
        self.decay, self.num_updates, self._name = decay, num_updates, name
        self._averages = {}

    def apply(self, var_list=None):
        """The operation that updates the averages."""
        those = list(trainable_variables() if var_list is None else var_list)
        decay = np.float32(self.decay)
        if self.num_updates is not None:
            n = cast(self.num_updates, np.float32)
            decay = N.minimum(decay, (1.0 + n) / (10.0 + n))
        done, graph = [], get_default_graph()
        for v in those:
            if v not in self._averages:
                with graph.name_scope(None), graph.control_dependencies(None):
                    start = (
                        v.initial_value if isinstance(v, Variable) else np.zeros(v.sizes, v.dtype)
                    )
                    keys = [GraphKeys.GLOBAL_VARIABLES]
                    self._averages[v] = Variable(start, False, keys, name=self.average_name(v))
                if isinstance(v, Variable):
                    graph.add_to_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, v)
            a = self._averages[v]
            done.append(a.assign_sub((a - v) * (1.0 - decay)))
        return group(*done, name=self._name)

    def average(self, var):
        """The average of a variable."""
        return self._averages.get(var)

    def average_name(self, var):
        """The name of the average of a variable."""
        return f"{var.op.name}/{self._name}"

    def variables_to_restore(self, moving_avg_variables=None):
        """{name in a checkpoint: variable}: variables get their averages."""
        averaged = set(moving_avg_variables or trainable_variables()) | set(self._averages)
        return {
            self.average_name(v) if v in averaged else v.op.name: v
            for v in global_variables()
            if v not in self._averages.values()
        }

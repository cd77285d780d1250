# SPDX-License-Identifier: Apache-2.0
"""The NNabla side of the bridge: answers requests under Python 3.10, knows nothing of nnl.

One request per line on stdin, one answer per line on stdout, both JSON; the arrays of a request
and of its answer lie in .npz files named in the request. Nothing is pickled. `bridge.py` is the
other end and describes the requests.

In JSON values three one-key objects stand for what JSON cannot say: {"$array": key of the .npz},
{"$tuple": [...]} and {"$initializer": [class name, args, kwargs]}.
"""

import json
import os
import sys
import traceback

import numpy as np

# Whatever NNabla prints goes to stderr: stdout carries answers only, so it is moved away before
# NNabla is imported.
ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)

import nnabla as nn  # noqa: E402
import nnabla.function_bases as function_bases  # noqa: E402
import nnabla.functions as F  # noqa: E402
import nnabla.initializer as I  # noqa: E402
import nnabla.parametric_functions as PF  # noqa: E402
import nnabla.solvers as S  # noqa: E402

FIRST_SEED = 313  # of the parameter generator when NNabla is imported

# What a request may fail with and be told so; anything else ends the worker, with its traceback.
REPORTED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


def reset(seed):
    """The state of a fresh process: no parameters, static mode, generators at their start."""
    nn.set_auto_forward(False)
    nn.set_default_context(nn.Context())
    nn.clear_parameters()
    nn.seed(FIRST_SEED if seed is None else seed)


def decode(value, arrays):
    """A JSON value with its stand-ins replaced."""
    if isinstance(value, list):
        return [decode(v, arrays) for v in value]
    if isinstance(value, dict):
        if "$array" in value:
            return arrays[value["$array"]]
        if "$tuple" in value:
            return tuple(decode(value["$tuple"], arrays))
        if "$initializer" in value:
            name, args, kwargs = decode(value["$initializer"], arrays)
            return getattr(I, name)(*args, **kwargs)
        return {k: decode(v, arrays) for k, v in value.items()}
    return value


def leaf(array, need_grad):
    variable = nn.Variable(array.shape, need_grad=need_grad)
    variable.d = array  # assignment keeps the dtype of the array
    variable.g = 0
    return variable


def flat(outputs):
    """The output variables of a call in order; nested tuples flattened, None left out."""
    if isinstance(outputs, list | tuple):
        return [v for group in outputs for v in flat(group)]
    return [] if outputs is None else [outputs]


def run_graph(inputs, outputs, grads, parameters, answer):
    """Forward, backward if asked, and every value and gradient into the answer."""
    backward = any(g is not None for g in grads)
    # one sink, so that functions with several outputs run forward and backward once
    sink = F.sink(*outputs, one_input_grad=False)
    sink.forward()
    for i, y in enumerate(outputs):
        answer[f"y{i}"] = y.d.copy()
    if backward:
        for v in parameters.values():
            v.g = 0
        for y, g in zip(outputs, grads):  # noqa: B905
            y.g = 0 if g is None else g
        sink.backward(None)
    for i, x in enumerate(inputs):
        if x is not None:
            answer[f"x{i}"] = x.d.copy()  # some functions write their inputs, running means say
            if backward and x.need_grad:
                answer[f"gx{i}"] = x.g.copy()
    for name, v in parameters.items():
        answer[f"p/{name}"] = v.d.copy()
        if backward and v.need_grad:
            answer[f"gp/{name}"] = v.g.copy()


def call(request, arrays, answer, module):
    reset(request["seed"])
    for name, value in decode(request["parameters"], arrays).items():
        nn.parameter.set_parameter(name, nn.Variable.from_numpy_array(value, need_grad=True))
    inputs = [
        None if x is None else leaf(decode(x["value"], arrays), x["need_grad"])
        for x in request["inputs"]
    ]
    outputs = flat(getattr(module, request["name"])(*inputs, **decode(request["kwargs"], arrays)))
    grads = decode(request["grads"], arrays) or [None] * len(outputs)
    if len(grads) != len(outputs):
        raise ValueError(
            f"{request['name']} has {len(outputs)} outputs, {len(grads)} gradients came"
        )
    parameters = nn.get_parameters(grad_only=False)
    before = {name: v.d.copy() for name, v in parameters.items()}
    run_graph(inputs, outputs, grads, parameters, answer)
    answer.update({f"p0/{name}": d for name, d in before.items()})
    return {
        "outputs": len(outputs),
        "inputs": len(inputs),
        "parameters": [
            {"name": name, "shape": list(v.shape), "need_grad": v.need_grad}
            for name, v in parameters.items()
        ],
    }


def function(request, arrays, answer):
    return call(request, arrays, answer, F)


def base_function(request, arrays, answer):
    """The generated function below the hand-written wrappers, with the arguments of .nnp files."""
    return call(request, arrays, answer, function_bases)


def parametric(request, arrays, answer):
    return call(request, arrays, answer, PF)


def solver(request, arrays, answer):
    """Run update steps, keep weights, gradients and states after each."""
    reset(None)
    weights = {}
    for name, value in decode(request["weights"], arrays).items():
        weights[name] = leaf(value, True)
    solve = getattr(S, request["name"])(*request["args"], **decode(request["kwargs"], arrays))
    solve.set_parameters(weights)
    results = []
    for i, step in enumerate(decode(request["steps"], arrays)):
        for name, variable in weights.items():
            gradient = step["grads"].get(name)
            if gradient is None:
                variable.grad.zero()  # stays lazily zero, which solvers treat as "no gradient"
            else:
                variable.g = gradient
        returned = [getattr(solve, method)(*args) for method, *args in step["calls"]]
        solve.update()
        states = solve.get_states()
        for name, variable in weights.items():
            answer[f"{i}/w/{name}"] = variable.d.copy()
            answer[f"{i}/g/{name}"] = variable.g.copy()
            for key, state in states[name].pstate.items():
                answer[f"{i}/s/{key}/{name}"] = state.d.copy()
        results.append(
            {
                "t": {name: state.t for name, state in states.items()},
                "state_names": {name: sorted(state.pstate) for name, state in states.items()},
                "returned": returned,
                "learning_rate": solve.learning_rate(),
            }
        )
    return {"steps": results}


def script(request, arrays, answer):
    """Run the text of a script. It reads the arrays `inputs` and fills the dict `outputs`."""
    reset(request["seed"])
    outputs = {}
    names = {"nn": nn, "F": F, "PF": PF, "S": S, "I": I, "np": np}
    names.update(inputs=decode(request["inputs"], arrays), outputs=outputs)
    code = compile(request["text"], request["name"], "exec")
    exec(code, names)
    for key, value in outputs.items():
        answer[f"out/{key}"] = np.array(value)
    return {}


KINDS = {
    "function": function,
    "base_function": base_function,
    "parametric": parametric,
    "solver": solver,
    "exec": script,
}


def handle(line):
    request = json.loads(line)
    with np.load(request["arrays"], allow_pickle=False) as stored:
        arrays = dict(stored)
    answer = {}
    try:
        result = KINDS[request["kind"]](request, arrays, answer)
    except REPORTED as error:
        return {"error": type(error).__name__, "text": str(error), "trace": traceback.format_exc()}
    np.savez(request["answer"], **{f"a{i}": a for i, a in enumerate(answer.values())})
    return {"result": result, "arrays": list(answer)}


def main():
    print(json.dumps({"nnabla": nn.__version__}), file=ANSWERS, flush=True)
    for line in sys.stdin:
        print(json.dumps(handle(line)), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()

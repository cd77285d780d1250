# SPDX-License-Identifier: Apache-2.0
"""nnl.compile: record a Python function once, or a whole training step, and run it as one plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np

from nnl.core.arguments.convert import exact
from nnl.core.arrays.array import NdArray
from nnl.core.graph.variable import Variable
from nnl.core.ops.caches import Plans
from nnl.core.parameters.parameter import FILES
from nnl.core.settings.context import STATE
from nnl.graph.open_sizes.recording import Axes
from nnl.graph.recording.compile_open import Opening
from nnl.graph.recording.recording import Compiled
from nnl.graph.saving.saving import Saver


def compile(
    f: Callable[..., Any] | None = None,
    open: Axes | None = None,
    ranges: Mapping[str, Sequence[int]] | None = None,
) -> Callable[..., Any]:
    """Run a function as a plan that is recorded at its first call with arguments of each shape.

    The plans of the latest 128 combinations of arguments stay, see nnl.set_cache_size.

    Args:
        f: A function of Variables, NdArrays and hashable values. It may call forward(), backward()
            and the methods of solvers: a whole training step becomes one plan. Arithmetic of
            NdArrays is recorded too, in place as well: `p.data -= 0.1 * p.grad`,
            `t.data.copy_from(y.data)`, `t.data.zero()` and `t.d = 0` happen at every run. Left out:
            what is returned takes it, for `@nn.compile(open=...)`.
        open: Sizes of arguments that may be any, by names of your own: {"x": ("batch", None)}. Axes
            with one name are of one size. Then f is recorded for all of them at its first call, a
            dozen times at small sizes; a new size takes a new plan and no recording. Results,
            gradients and updates are bit for bit those of a plan recorded at that size.
        ranges: {"batch": (1, 256)}: least size, greatest (None: any), and what sizes are a multiple
            of.

    Python code in f runs only while it is recorded. Later runs see again what it saw then:

    - numbers, strings and numpy arrays, those given to functions and to `t.d = 0` included; a
      learning rate or another hyperparameter of a solver is followed if it is set outside of f;
    - branches, loops, prints and counters; shapes, dtypes and flags of arguments, for each
      combination of which f is recorded once; the context;
    - Variables and NdArrays that f makes, which are made once, and parameters, created once;
    - calls that change something besides arrays: `nnl.seed`, `clear_parameters`,
      `set_learning_rate`, `need_grad = ...`; hooks of forward() and backward() do not run.

    What would be lost or stay as it is without notice raises ValueError at its line: to read `.d`,
    to write numpy arrays into it, or to share memory, unless f itself has made the array and no
    function has read it yet. Writes through a numpy array that was taken from `.d` before are not
    seen.

    Returns:
        A function with the same arguments. The Variables it returns are new leaves.
    Raises:
        TypeError: An argument is neither Variable nor NdArray nor hashable.
        ValueError: With open sizes: f is not the same program at all of them, or a size is out of
            range; the text names the function, or the argument and its axis.

    Example:
        >>> import nnl as nn
        >>> double = nn.compile(lambda x: x * 2)
        >>> x = nn.Variable((2,))
        >>> x.d = 3
        >>> double(x).d
        array([6., 6.], dtype=float32)

    `double.save("double.nnlp")` saves what has been recorded as programs, one for each combination
    of arguments, with the arrays they use as they are now; see nnl.load_program. A function of the
    forward pass that was recorded once is a network as well: `save` writes .nnp, .onnx and what
    else `nnl convert` does. With open sizes `save` writes .nnlp: one program that runs at any.
    """
    if f is None:
        return partial(compile, open=open, ranges=ranges)
    cache, opening = Plans(), None if open is None else Opening(f, open, ranges or {})
    families = Plans()

    @wraps(f)
    def run(*args: Any, **kw: Any) -> Any:
        if not STATE.interpreter.has_values:
            return f(*args, **kw)  # already inside a recording
        given: list[Variable | NdArray] = []
        key: list[Any] = [STATE.target]
        for a in (*args, *kw.values()):
            if isinstance(a, (Variable, NdArray)):
                given.append(a)
                key.append((a.spec, isinstance(a, Variable) and a.need_grad))
            elif isinstance(a, np.ndarray):
                raise TypeError(
                    f"compile: {getattr(f, '__name__', 'f')} got a numpy array; wrap it with "
                    "nnl.Variable.from_numpy_array"
                )
            else:
                key.append(exact(a))
        key += kw
        try:
            compiled = cache.find(tuple(key))
        except TypeError:
            raise TypeError(
                f"compile: every argument of {getattr(f, '__name__', 'f')} must be a Variable, an "
                f"NdArray or hashable, got {[type(a).__name__ for a in args]}"
            ) from None
        if compiled is None or not compiled.valid():
            if opening is None:
                compiled = cache.put(tuple(key), lambda: Compiled.of(f, args, kw))
            else:
                family = opening.family(families, key, args, kw)
                compiled = cache.put(tuple(key), lambda: family.at(given))
        return compiled.run(given)

    # without references to `run`, so that it goes when nobody holds it
    name = run.__name__.strip("<>")
    known = cache if opening is None else families
    run.add_to = partial(_add_to, known)  # type: ignore[attr-defined]
    run.save = partial(_save, known, name)  # type: ignore[attr-defined]
    return run


def _add_to(cache: Plans, saver: Saver, name: str) -> None:
    """Add all that has been recorded of a function to a file."""
    if not cache:
        raise ValueError(f"save: {name} has not been called, so nothing is recorded")
    for n, compiled in enumerate(cache.values()):
        compiled.add_to(saver, name if n == 0 else f"{name}.{n + 1}")


def _save(cache: Plans, name: str, path: str | os.PathLike[str]) -> None:
    """Write what has been recorded of a function as programs, .nnlp, or as a network."""
    file = os.fspath(path)
    if cache and not file.lower().endswith(".nnlp"):
        if len(cache) > 1:
            raise ValueError(
                f"save: {file} takes one network, and {name} was recorded for {len(cache)} "
                "combinations of arguments: .nnlp takes all of them"
            )
        (compiled,) = cache.values()
        FILES["save_network"](file, name, *compiled.network(name))
        return
    saver = Saver()
    _add_to(cache, saver, name)
    saver.write(path)

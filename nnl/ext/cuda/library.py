# SPDX-License-Identifier: Apache-2.0
"""The kernels of a device behind the same calls as the native library's, so that every pass and
the plan serve both. Not yet run on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from nnl.core.context import SPACES, Backend
from nnl.core.spec import Spec
from nnl.ext.cuda.arrays import definition
from nnl.ext.cuda.device import Device, DeviceSpace
from nnl.ext.cuda.executor import DevicePlan, PythonStep
from nnl.ext.cuda.registry import Kernel, Operand, Setup, find
from nnl.ext.library import Traits, into, is_list, knows, request
from nnl.ext.native import CHANNELS_LAST, DTYPES

NAMES = {number: name for name, number in DTYPES.items()}
Setups = Mapping[str, Sequence[Setup]]
NativeSpec = tuple[tuple[int, ...], int, bool]


def operand(spec: NativeSpec | None) -> Operand | None:
    """A spec as passes write it, as setups take it."""
    if spec is None:
        return None
    shape, number, last = spec
    return Operand(shape, Spec.of((), _dtype(NAMES[number])).dtype, last)


def _dtype(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return name


class CudaLibrary:
    """The kernels of one device, a Library.

    Args:
        setups: () -> setups by the name of their op; asked once, when they are first needed.
    """

    traits = Traits(
        places=("cuda", "cupy"),
        least_attention_bytes=0,
        most_rows_added_to=1 << 62,
        computes_again=False,  # memory is large here, and its bandwidth what steps wait for
    )

    def __init__(self, device: Device, setups: Callable[[], Setups]) -> None:
        self.device, self._load = device, setups

    @cached_property
    def setups(self) -> Setups:
        return self._load()

    def kernel_names(self) -> list[str]:
        """Ops for which some setup is registered."""
        return sorted(self.setups)

    def kernel(
        self,
        op: str,
        attrs: Mapping[str, Any],
        ins: Sequence[NativeSpec | None],
        outs: Sequence[NativeSpec],
    ) -> Kernel | None:
        """The kernel of an op for these arrays, None if all setups decline."""
        self.device.activate()  # cuDNN asks for the current one
        results = [x for x in map(operand, outs) if x is not None]
        return find(op, dict(attrs), [operand(x) for x in ins], results, self.setups)

    # ---- what plans are made of ----

    def Plan(self, offsets: Sequence[int], arena_bytes: int) -> DevicePlan:
        return DevicePlan(self.device, offsets, arena_bytes)

    def python_step(self, call: Callable[[], Any]) -> PythonStep:
        return PythonStep(call)

    def array_at(self, address: int, shape: Any, dtype: Any, owner: Any) -> Any:
        return self.device.array_at(address, shape, dtype, owner)


def make_backend(name: str, device: Device, setups: Callable[[], Setups]) -> Backend:
    """The backend of a device: its kernels, and the definitions for what they decline.

    Its memory space, and that of what lies there channels-last, become known to all arrays.
    """
    library = CudaLibrary(device, setups)
    space = device.name
    SPACES[space] = DeviceSpace(device, library)
    SPACES[f"{space} {CHANNELS_LAST}"] = DeviceSpace(device, library, last=True)

    def bind(
        op: Any, attrs: Any, in_specs: tuple[Any, ...], out_specs: tuple[Any, ...]
    ) -> tuple[Callable[..., Any], bool] | None:
        made = definition(op, attrs, in_specs, out_specs, device.xp, space)
        specs = [s for s in (*in_specs, *out_specs) if s is not None]
        # of what shares memory, only updates are work
        same = op.view and getattr(attrs, "inplace", True) and not op.written(attrs)
        unknown = any(s.dtype.name not in DTYPES for s in specs)
        if not knows(library, op.name) or same or unknown:
            return made and (partial(_active, device, made[0]), made[1])
        chosen: Callable[..., Any] | None = None

        def call(*bufs: Any, out: Any = None) -> Any:
            nonlocal chosen
            if chosen is None:
                chosen = array_kernel(library, op, attrs, in_specs, out_specs)
                if chosen is None:
                    assert made is not None
                    chosen = made[0] if made[1] else partial(into, made[0])
            device.activate()
            return chosen(*bufs) if out is None else chosen(*bufs, out=out)

        return call, len(out_specs) == 1 and not is_list(op, attrs, in_specs)

    return Backend(name, space, bind, fused=True)


def _active(device: Device, call: Callable[..., Any], *bufs: Any, **kw: Any) -> Any:
    device.activate()
    return call(*bufs, **kw)


def array_kernel(
    library: CudaLibrary,
    op: Any,
    attrs: Any,
    in_specs: tuple[Any, ...],
    out_specs: tuple[Any, ...],
) -> Callable[..., Any] | None:
    """A kernel as a call on arrays; None where there is none."""
    from nnl.ext.native import native_spec

    device, xp = library.device, library.device.xp
    ins, outs = [native_spec(s) for s in in_specs], [native_spec(s) for s in out_specs]
    asked = request(library, op.name, attrs.as_dict(), ins, outs)
    kernel = asked and library.kernel(*asked, ins, outs)
    if kernel is None:
        return None
    writes = op.written(attrs)
    view = op.view and getattr(attrs, "inplace", True)
    as_tuple = len(out_specs) > 1 or is_list(op, attrs, in_specs)

    def call(*bufs: Any, out: Any = None) -> Any:
        plain = [b if b is None or b.flags.c_contiguous else b.copy() for b in bufs]
        if view:
            outs = [plain[0]]
        elif out is not None:
            outs = [out]
        else:
            outs = [xp.empty(s.shape, s.dtype) for s in out_specs]
        address = device.address_of
        scratch = xp.empty((kernel.workspace,), "uint8") if kernel.workspace else None
        kernel.run(
            [None if b is None else address(b) for b in plain],
            [address(y) for y in outs],
            0 if scratch is None else address(scratch),
            device.stream,
        )
        for i in writes:
            if plain[i] is not bufs[i]:
                bufs[i][...] = plain[i]
        if view:
            return bufs[0]
        return tuple(outs) if as_tuple else outs[0]

    return call

# SPDX-License-Identifier: Apache-2.0
"""The kernels of a device behind the same calls as the native library's, so that every pass and
the plan serve both. Not yet run on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from nnl.core.arrays.spec import Spec
from nnl.core.ops.op import Attributes, Op
from nnl.core.settings.context import SPACES, Backend, half_type
from nnl.ext.device.arrays import definition
from nnl.ext.device.device import Device, DeviceSpace
from nnl.ext.device.executor import DevicePlan, PythonStep
from nnl.ext.device.kernels.module import laid_out_for
from nnl.ext.device.kernels.stored import Store
from nnl.ext.device.registry import Kernel, Operand, Registry
from nnl.ext.library import (
    CHANNELS_LAST,
    DTYPES,
    LAYOUTS,
    Abilities,
    Array,
    ArraySpec,
    Asked,
    Call,
    Memory,
    Plain,
    Specs,
    Traits,
    at_first_call,
    into,
    is_list,
    knows,
    native_spec,
    request,
)

NAMES = list(DTYPES)
NONE = Abilities()
InSpecs = tuple[Spec | None, ...]
OutSpecs = tuple[Spec, ...]


def operand(spec: ArraySpec | None) -> Operand | None:
    """A spec as passes write it, as setups take it."""
    if spec is None:
        return None
    shape, number, layout = spec
    dtype = half_type(NAMES[number])
    assert dtype is not None
    return Operand(shape, dtype, layout == LAYOUTS[CHANNELS_LAST])


class DeviceLibrary:
    """The kernels of one device, a Library.

    Args:
        setups: () -> the setups of this kind of device; asked once, when they are first needed.
    """

    def __init__(self, device: Device, traits: Traits, setups: Callable[[], Registry]) -> None:
        self.device, self.traits, self._load = device, traits, setups

    @cached_property
    def setups(self) -> Registry:
        return self._load()

    def kernel_names(self) -> list[str]:
        """Ops for which some setup is registered."""
        return sorted(self.setups)

    def abilities(self, op: str) -> Abilities:
        return self.setups.abilities.get(op, NONE)

    def kernel(self, op: str, attrs: dict[str, Plain], ins: Specs, outs: Specs) -> Kernel | None:
        """The kernel of an op for these arrays, None if all setups decline."""
        self.device.activate()  # cuDNN asks for the current one
        results = [x for x in map(operand, outs) if x is not None]
        with laid_out_for(self.device.geometry, op):
            return self.setups.find(op, dict(attrs), [operand(x) for x in ins], results)

    def stored_kernels(self, programs: Mapping[str, Sequence[Asked | None]]) -> dict[str, Any]:
        """The kernels of the steps of programs, as JSON has them; see kernels/stored.py."""
        store = Store("opencl")
        for name, steps in programs.items():
            found = store.programs[name] = []
            for asked in steps:
                kernel = None if asked is None else self.kernel(*asked)
                if asked is None or kernel is None:
                    found.append(None)
                    continue
                _, _, ins, outs = asked
                found.append(store.step(kernel, [x is not None for x in ins], len(outs)))
        return store.data()

    def control_kernel(self, program: str) -> Kernel:
        raise ValueError("programs inside steps are run from the host")

    def packed_convolution_bytes(self, attrs: dict[str, Plain], ins: Specs, outs: Specs) -> int:
        return 0

    def packed_bytes(self, op: str, attrs: dict[str, Plain], ins: Specs, outs: Specs) -> int:
        return 0

    # ---- what plans are made of ----

    def Plan(self, offsets: Sequence[int], arena_bytes: int) -> DevicePlan:
        return DevicePlan(self.device, offsets, arena_bytes)

    def python_step(self, call: Callable[[], object]) -> PythonStep:
        return PythonStep(call)

    def array_at(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: Memory
    ) -> Array:
        return self.device.array_at(address, shape, dtype, owner)


def make_backend(
    name: str, device: Device, traits: Traits, setups: Callable[[], Registry]
) -> Backend:
    """The backend of a device: its kernels, and the definitions for what they decline.

    Its memory space, and that of what lies there channels-last, become known to all arrays.
    """
    library = DeviceLibrary(device, traits, setups)
    space = device.name
    SPACES[space] = DeviceSpace(device, library)
    SPACES[f"{space} {CHANNELS_LAST}"] = DeviceSpace(device, library, last=True)

    def bind(
        op: Op, attrs: Any, in_specs: InSpecs, out_specs: OutSpecs
    ) -> tuple[Call, bool] | None:
        made = definition(op, attrs, in_specs, out_specs, device.xp, space)
        specs = [s for s in (*in_specs, *out_specs) if s is not None]
        # of what shares memory, only updates are work
        same = op.view and getattr(attrs, "inplace", True) and not op.written(attrs)
        unknown = any(s.dtype.name not in DTYPES for s in specs)
        if not knows(library, op.name) or same or unknown:
            return made and (partial(_active, device, made[0]), made[1])

        def make() -> Call:
            kernel = array_kernel(library, op, attrs, in_specs, out_specs)
            if kernel is not None:
                return kernel
            assert made is not None
            return made[0] if made[1] else partial(into, made[0])

        takes_out = len(out_specs) == 1 and not is_list(op, attrs, in_specs)
        return partial(_active, device, at_first_call(make)), takes_out

    return Backend(name, space, bind, fused=True)


def _active(device: Device, call: Call, *bufs: Array, **kw: Array) -> Any:
    device.activate()
    return call(*bufs, **kw)


def array_kernel(
    library: DeviceLibrary, op: Op, attrs: Attributes, in_specs: InSpecs, out_specs: OutSpecs
) -> Call | None:
    """A kernel as a call on arrays; None where there is none."""
    device, xp = library.device, library.device.xp
    ins, outs = [native_spec(s) for s in in_specs], [native_spec(s) for s in out_specs]
    asked = request(library, op.name, attrs.as_dict(), ins, outs)
    kernel = None if asked is None else library.kernel(*asked, ins, outs)
    if kernel is None:
        return None
    writes = op.written(attrs)
    view = op.view and getattr(attrs, "inplace", True)
    as_tuple = len(out_specs) > 1 or is_list(op, attrs, in_specs)

    def call(*bufs: Array, out: Array = None) -> Any:
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

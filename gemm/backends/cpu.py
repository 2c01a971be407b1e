"""The CPU backend: the C engine gemm._cpu (csrc/), called through cffi with the GIL released."""

from __future__ import annotations

import math
import os
from operator import floordiv
from typing import Any, ClassVar

import numpy as np

from gemm.catalog import KERNELS, Kernel
from gemm.core import threads
from gemm.core.backend import Backend, Kept, Launch
from gemm.core.engine import REMEDY, cpu_name, engine, features
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.operands import aligned, same_stack
from gemm.core.problem import Device, DeviceView, Ints, Operand, Problem


def _features() -> frozenset[str]:
    """Return the CPU's instruction sets. If GEMM_CPU_ISA names a target, return only those that the target needs.

    Raises BackendUnavailable if there is no such target, or if the CPU lacks an instruction set that the target needs.
    """
    found = features()
    wish = os.environ.get("GEMM_CPU_ISA")
    if not wish:
        return found
    needs: dict[str, list[set[str]]] = {}
    for row in KERNELS:
        if row.backend == "cpu":
            needs.setdefault(row.target, []).append(set(row.needs))
    if wish not in needs:
        raise BackendUnavailable(
            "cpu", f"GEMM_CPU_ISA={wish} names no target", f"Set it to one of {', '.join(sorted(needs))} or unset it"
        )
    able = [needed for needed in needs[wish] if needed <= found]
    if not able:
        missing = min(needs[wish], key=len) - found
        raise BackendUnavailable(
            "cpu", f"GEMM_CPU_ISA={wish}, but this CPU lacks {', '.join(sorted(missing))}", "Unset the variable"
        )
    return frozenset().union(*able)


def _check_caches(loaded: Any) -> None:
    """Raise BackendUnavailable if GEMM_CPU_CACHES is set, but the engine cannot read it."""
    wish = os.environ.get("GEMM_CPU_CACHES")
    if wish and not loaded.lib.gemm_parse_caches(loaded.ffi.new("gemm_caches *"), wish.encode()):
        remedy = "Set it to KiB of L1/ways, L2/CPUs that share it, L3/CPUs that share it, such as 32/8,512/1,8192/2"
        raise BackendUnavailable("cpu", f"GEMM_CPU_CACHES={wish} does not describe three caches", remedy)


class CpuBackend(Backend):
    """Runs the C engine. The engine has micro-kernels in plain C and for several instruction sets. A loop nest with
    threads and cache blocks calls them.
    """

    name: ClassVar[str] = "cpu"

    def __init__(self) -> None:
        self._devices: tuple[Device, ...] | None = None

    @threads.once
    def _engine(self) -> Any:
        return engine()

    def devices(self) -> tuple[Device, ...]:
        """Return the one device, cpu:0.

        Raises:
            BackendUnavailable: the extension gemm._cpu is missing, or GEMM_CPU_ISA or GEMM_CPU_CACHES is invalid.
            ValueError: GEMM_NUM_THREADS is invalid.
        """
        if self._devices is None:
            able = _features()
            _check_caches(self._engine)
            architecture = self._engine.ffi.string(self._engine.lib.gemm_architecture).decode()
            limits = {"threads": threads.granted(), "cores": threads.cores()}
            device = Device("cpu", "cpu:0", cpu_name(), architecture, unified=True, features=able, limits=limits)
            self._devices = (device,)
        return self._devices

    def launcher(self, kernel: Kernel, device: Device, problem: Problem) -> Launch:
        """Return a launch of `kernel` for products with the m, n and k of `problem`.

        Raises KernelFailed if the CPU lacks a feature that the kernel needs, or if the extension lacks the kernel.
        """
        loaded = self._engine
        if missing := set(kernel.needs) - device.features:  # an illegal instruction would end the process
            raise KernelFailed(f"{kernel.name} needs {', '.join(sorted(missing))}, which {device.key} lacks")
        if not hasattr(loaded.lib, kernel.name):
            cause = "it is of another architecture, or the extension was built before the row was added"
            raise KernelFailed(f"gemm._cpu has no kernel {kernel.name}: {cause}. {REMEDY}")
        return CpuLaunch(loaded, kernel, problem)

    keeps_alike: ClassVar[bool] = True

    def keep(self, kernel: Kernel, device: Device, b: Operand, *, reproducible: bool) -> DeviceView:
        """Return `b`, packed into the aligned panels that the kernel reads. The result has the shape of `b`.

        The strides of `b` must be multiples of its element size.
        """
        assert isinstance(b, np.ndarray)
        ffi, lib = self._engine.ffi, self._engine.lib
        (k, n), size = b.shape, b.itemsize
        plan = self._packing_plan(kernel, k, n)
        plan.b.row, plan.b.column = b.strides[0] // size, b.strides[1] // size
        packed = aligned(int(lib.gemm_prepacked_bytes(plan)))
        start = packed.ctypes.data
        lib.gemm_prepack(plan, ffi.cast("void *", b.ctypes.data), ffi.cast("void *", start))
        return DeviceView(Kept(packed), start, 0, b.shape, (n * size, size), b.dtype, device, readonly=True)

    def packing(self, kernel: Kernel, shape: tuple[int, int]) -> dict[str, int]:
        """Return {"KC": rows of `b` in a packed block}. KC depends on the caches of this machine."""
        return {"KC": int(self._packing_plan(kernel, *shape).kc)}

    def _packing_plan(self, kernel: Kernel, k: int, n: int) -> Any:
        """Return a gemm_plan for packing a k x n matrix with `kernel`. The caller must set the matrix's strides."""
        ffi, lib = self._engine.ffi, self._engine.lib
        depth = kernel.params.get("KC", 0)
        plan = ffi.new("gemm_plan *", {"kernel": ffi.addressof(getattr(lib, kernel.name)), "n": n, "k": k, "kc": depth})
        lib.gemm_set_blocks(plan)
        return plan


class CpuLaunch:
    """A launch of a CPU kernel. It caches a gemm_plan for each layout, so that later calls with equal shapes and
    strides reuse the plan.
    """

    KEPT = 64
    """The maximum number of plans in the cache. A full cache is cleared before the next plan is added."""

    def __init__(self, loaded: Any, kernel: Kernel, problem: Problem, goes_on: bool = False) -> None:
        """Bind `kernel` to `problem`.

        Args:
            goes_on: whether to add the products to the sums that out already contains. If true, out's column stride
                must be one element, alpha must be 1, and c must be None.
        """
        self._ffi, self._lib = loaded.ffi, loaded.lib
        self._kernel, self._problem, self._goes_on = kernel, problem, goes_on
        self._plans: dict[Any, tuple[Any, Any]] = {}  # {layout: result of _plan}

    def __call__(self, a: Any, b: Any, c: Any, out: Any, alpha: float, beta: float) -> None:
        ready = self._ready(a, b, c, out)
        if ready is not None:
            right, cast = b.owner.memory if isinstance(b, DeviceView) else b, self._ffi.cast
            addresses = [
                self._ffi.NULL if x is None else cast("void *", x.__array_interface__["data"][0])
                for x in (a, right, c, out)
            ]
            result = self._lib.gemm_run(ready[0], *addresses, self._scalar(alpha), self._scalar(beta))
            if result == self._lib.GEMM_OK:
                return
            if result == self._lib.GEMM_NO_MEMORY:
                raise KernelFailed(f"{self._kernel.name}: no memory for packing {self._problem}", memory=True)
        _through_copies(self, a, b, c, out=out, scalars=(alpha, beta))

    def native(self, a: Any, b: Any, c: Any, out: Any) -> tuple[int, Any] | None:
        """Return the address of the gemm_plan for operands of this layout, and the object that owns the plan.

        gemm.frontend.plan_cache uses the plan to repeat the product without Python. Returns None if a stride is not a
        multiple of its element size.
        """
        ready = self._ready(a, b, c, out)
        return None if ready is None else (int(self._ffi.cast("uintptr_t", ready[0])), ready)

    def blocking(self, a: Any, b: Any, c: Any, out: Any) -> str:
        """Return a text for `explain`: the product's cache blocks, the caches, the packed operands and the threads."""
        ready, lib = self._ready(a, b, c, out), self._lib
        if ready is None:
            return "the operands are copied: a stride is no multiple of the size of an element"
        found = lib.gemm_describe(ready[0], *(self._ffi.cast("void *", x.ctypes.data) for x in (a, b, out)))
        threads_used = f"{found.threads} thread{'s'[: found.threads > 1]}"
        if not found.kc:
            return f"a single kernel call without cache blocks, which packs nothing; {threads_used}"
        names = "ba" if found.transposed else "ab"
        packed = [name for name, packs in zip(names, (found.pack_a, found.pack_b), strict=True) if packs]
        where = "stays in L1" if found.in_l1 else "is read from L2"
        panel = f"a panel of {names[1]} has {found.panel / 1024:.3g} KiB and {where}"
        blocks = f"MC × KC × NC = {found.mc} × {found.kc} × {found.nc}, {panel}"
        packs_what = f"packs {' and '.join(packed) or 'nothing'}; up to {threads_used}"
        return f"{blocks} ({self._caches()}); {packs_what}"

    def _caches(self) -> str:
        caches = self._lib.gemm_get_caches()
        found = zip(("L1", "L2", "L3"), caches.size, caches.shared, strict=True)
        sizes = [f"{name} {size >> 10} KiB" + f" for {n} CPUs" * (n > 1) for name, size, n in found if size]
        return f"{', '.join(sizes)}: {self._ffi.string(caches.source).decode()}"

    def _scalar(self, value: complex) -> Any:
        """Return alpha or beta as a gemm_scalar, which has a real, an imaginary and a 64-bit integer field."""
        integer = value & (1 << 64) - 1 if isinstance(value, int) else 0
        return self._ffi.new("gemm_scalar *", (value.real, value.imag, integer - (integer >> 63 << 64)))

    def _ready(self, a: Any, b: Any, c: Any, out: Any) -> tuple[Any, Any] | None:
        strides = a.strides, b.strides, (out if c is None else c).strides, out.strides
        sizes = a.itemsize, b.dtype.itemsize, out.itemsize, out.itemsize
        layout = out.shape[:-2], strides, sizes, isinstance(b, DeviceView)
        ready = self._plans.get(layout)
        if ready is None and (ready := self._plan(*layout)) is not None:
            if len(self._plans) >= self.KEPT:
                self._plans.clear()
            self._plans[layout] = ready
        return ready

    def _plan(self, stack: Ints, strides: tuple[Ints, ...], sizes: Ints, prepared: bool) -> tuple[Any, Any] | None:
        """Return (gemm_plan, the memory that the plan points to); None if a stride is no multiple of its element size.

        Args:
            stack: the lengths of out's batch axes.
            strides: byte strides of a, b, c and out. If there is no c, its strides are those of out.
            sizes: bytes of an element of a, b, c and out.
            prepared: whether b is prepacked.
        """
        ffi, problem, own = self._ffi, self._problem, self._kernel.params.get
        steps = []  # strides in elements
        for step, size in zip(strides, sizes, strict=True):
            if math.gcd(size, *step) != size:
                return None
            steps.append(tuple(map(floordiv, step, (size,) * len(step))))
        *outer, rows, columns = zip(*steps, strict=True)
        axes = same_stack(stack, *zip(*outer, strict=True)) if stack else []
        m = problem.m
        # If all products of a stack use the same b, and the rows of a, c and out continue from product to product with
        # the same stride, the stack is one product with more rows.
        while axes and axes[-1][1] == (m * rows[0], 0, m * rows[2], m * rows[3]):
            m *= axes.pop()[0]
        lengths, *batches = [ffi.NULL] * 5
        if axes:
            lengths, *batches = (ffi.new("int64_t[]", x) for x in zip(*((n, *step) for n, step in axes), strict=True))
        plan = ffi.new(
            "gemm_plan *",
            (
                ffi.addressof(getattr(self._lib, self._kernel.name)), m, problem.n, problem.k,
                own("MC", 0), own("KC", 0), own("NC", 0), threads.MOST, prepared, problem.reproducible, len(axes),
                lengths, *zip(rows, columns, batches, strict=True),
            ),
        )  # fmt: skip
        self._lib.gemm_set_blocks(plan)
        plan.accumulate, block = self._goes_on, ffi.new("gemm_block *")
        if self._lib.gemm_is_direct(plan, block):
            plan.direct = block
        return plan, (lengths, batches, block)


def _through_copies(launch: Launch, *operands: Any, out: Any, scalars: tuple[float, float]) -> None:
    """Run `launch` with C-ordered copies of the host operands, then copy the result to `out`.

    This is for operands that the kernels cannot use: an address or stride is not a multiple of the element size, for
    example in a field of packed records. `scalars` are alpha and beta.
    """
    copies = (np.array(x, order="C") if isinstance(x, np.ndarray) else x for x in operands)
    result = np.array(out, order="C")  # with `goes_on`, the launch adds to the values of out
    launch(*copies, result, *scalars)
    out[...] = result

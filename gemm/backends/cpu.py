"""The CPU backend: the C engine gemm._cpu (csrc/), called through cffi with the GIL released."""

from __future__ import annotations

import importlib
import math
import os
import platform
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gemm.backends.base import Backend, Launch
from gemm.catalog import KERNELS, Kernel
from gemm.errors import BackendUnavailable, KernelFailed
from gemm.problem import Device, Problem, same_stack

_REMEDY = "Install the package and run outside of its checkout, or build it in place: pip install -e ."


def _engine() -> Any:
    """The extension module, with `ffi` and `lib`."""
    try:
        return importlib.import_module("gemm._cpu")
    except ImportError as error:
        built = error.name != "gemm._cpu"
        cause = f"cannot be loaded ({error})" if built else "is not built"
        raise BackendUnavailable("cpu", f"the C extension gemm._cpu {cause}", _REMEDY) from error


def num_threads() -> int:
    """How many threads a product may use: the least of the CPUs that this process may run on (affinity), the
    container's CPU quota (cgroup) and GEMM_NUM_THREADS. Raises ValueError if that variable is no positive integer."""
    cores = _cores()
    wish = os.environ.get("GEMM_NUM_THREADS")
    if not wish:
        return cores
    try:
        count = int(wish)
    except ValueError:
        count = 0
    if count < 1:
        raise ValueError(f"the environment variable GEMM_NUM_THREADS must be a positive integer, not {wish!r}")
    return min(cores, count)


def _cores() -> int:
    """CPUs that this process may run on, quota included."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _cgroup_quota())))


@lru_cache(maxsize=1)
def _cgroup_quota(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """CPUs' worth of time that the control groups grant this process, inf without a limit; versions 1 and 2.

    A group's limit binds all below it, so the least of the way up counts. In a container the way that
    /proc names may lie outside of the mount, whose root is then the container's own group.
    """
    quota = math.inf
    try:
        lines = own.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # no Linux
        return quota
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if controllers and "cpu" not in names:
            continue
        for mount in (root,) if not controllers else (root / controllers, root / "cpu"):
            group = Path(path.lstrip("/"))
            for folder in (mount / group, *(mount / parent for parent in group.parents), mount):
                quota = min(quota, _group_quota(folder))
    return quota


def _group_quota(folder: Path) -> float:
    try:
        if (folder / "cpu.max").exists():
            granted, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        else:
            granted = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
        return int(granted) / int(period) if granted not in ("max", "-1") else math.inf
    except (OSError, ValueError):  # absent, unreadable or of a kind unknown here: no limit that we can tell
        return math.inf


def _features() -> frozenset[str]:
    """What the CPU can run, cut down to the target that GEMM_CPU_ISA names."""
    engine = _engine()
    found: set[str] = set()
    mask, bit = engine.lib.gemm_features(), 0
    while engine.lib.gemm_feature_names[bit] != engine.ffi.NULL:
        if mask >> bit & 1:
            found.add(engine.ffi.string(engine.lib.gemm_feature_names[bit]).decode())
        bit += 1
    wish = os.environ.get("GEMM_CPU_ISA")
    if not wish:
        return frozenset(found)
    needs: dict[str, set[str]] = {}
    for row in KERNELS:
        if row.backend == "cpu":
            needs.setdefault(row.target, set()).update(row.needs)
    if wish not in needs:
        raise BackendUnavailable(
            "cpu", f"GEMM_CPU_ISA={wish} names no target", f"Set it to one of {', '.join(sorted(needs))} or unset it"
        )
    if missing := needs[wish] - found:
        raise BackendUnavailable(
            "cpu", f"GEMM_CPU_ISA={wish}, but this CPU lacks {', '.join(sorted(missing))}", "Unset the variable"
        )
    return frozenset(needs[wish])


def _cpu_name() -> str:
    """The CPU's model as the system tells it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    model = re.search(r"^(?:model name|Hardware|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()


class CpuBackend(Backend):
    """Micro-kernels for scalar C, NEON, AVX2 and AVX-512 in one cache-blocked, threaded driver."""

    name: ClassVar[str] = "cpu"

    def __init__(self) -> None:
        self._devices: tuple[Device, ...] | None = None

    def devices(self) -> tuple[Device, ...]:
        """One device, cpu:0. Raises BackendUnavailable without the extension or for a bad GEMM_CPU_ISA, ValueError
        for a bad GEMM_NUM_THREADS."""
        if self._devices is None:
            features = _features()
            architecture = _engine().ffi.string(_engine().lib.gemm_architecture).decode()
            limits = {"threads": num_threads(), "cores": _cores()}
            device = Device("cpu", "cpu:0", _cpu_name(), architecture, unified=True, features=features, limits=limits)
            self._devices = (device,)
        return self._devices

    def launcher(self, kernel: Kernel, device: Device, problem: Problem) -> Launch:
        """A launch bound to `kernel`, the sizes of `problem` and the number of threads at this moment."""
        engine = _engine()
        if missing := set(kernel.needs) - device.features:  # running it would be an illegal instruction
            raise KernelFailed(f"{kernel.name} needs {', '.join(sorted(missing))}, which {device.key} lacks")
        if not hasattr(engine.lib, kernel.name):
            cause = "it is of another architecture, or the extension was built before the row was added"
            raise KernelFailed(f"gemm._cpu holds no {kernel.name}: {cause}. {_REMEDY}")
        return CpuLaunch(engine, kernel, problem)


class CpuLaunch:
    """A launch; what depends on strides is made once per layout, so that repeated products find it."""

    KEPT_LAYOUTS = 64
    """How many layouts of operands are remembered before it starts anew."""

    def __init__(self, engine: Any, kernel: Kernel, problem: Problem) -> None:
        self._ffi, self._lib = engine.ffi, engine.lib
        self._kernel, self._problem, self._threads = kernel, problem, num_threads()
        self._layouts: dict[object, tuple[Any, Any] | None] = {}

    def __call__(self, a: Any, b: Any, c: Any, out: Any, alpha: float, beta: float) -> None:
        ready = self._plan(a, b, c, out)
        if ready is not None:
            addresses = map(self._address, (a, b, c, out))
            result = self._lib.gemm_run(ready[0], *addresses, self._scalar(alpha), self._scalar(beta))
            if result == self._lib.GEMM_OK:
                return
            if result == self._lib.GEMM_NO_MEMORY:
                raise KernelFailed(f"{self._kernel.name}: no memory for packing {self._problem}", memory=True)
        _through_copies(self, a, b, c, out, alpha, beta)

    def native(self, a: Any, b: Any, c: Any, out: Any) -> tuple[int, Any] | None:
        """The address of the gemm_plan for operands like these, and what owns it; for gemm.repeat."""
        ready = self._plan(a, b, c, out)
        return None if ready is None else (int(self._ffi.cast("uintptr_t", ready[0])), ready)

    def _scalar(self, value: complex) -> Any:
        """alpha or beta as every kind of element may want it."""
        integer = value & (1 << 64) - 1 if isinstance(value, int) else 0
        return self._ffi.new("gemm_scalar *", (value.real, value.imag, integer - (integer >> 63 << 64)))

    def _address(self, array: np.ndarray | None) -> Any:
        return self._ffi.NULL if array is None else self._ffi.cast("void *", array.__array_interface__["data"][0])

    def _plan(self, a: Any, b: Any, c: Any, out: Any) -> tuple[Any, Any] | None:
        layout = out.shape, out.strides, a.strides, b.strides, None if c is None else c.strides
        if layout not in self._layouts:
            if len(self._layouts) >= self.KEPT_LAYOUTS:
                self._layouts.clear()
            self._layouts[layout] = self._prepare(a, b, out if c is None else c, out)
        return self._layouts[layout]

    def _prepare(self, *arrays: np.ndarray) -> tuple[Any, Any] | None:
        """(gemm_plan, what it points to) for a, b, c and out; None if a stride is no multiple of the element."""
        ffi, problem, params = self._ffi, self._problem, self._kernel.params
        if any(step % x.itemsize for x in arrays for step in x.strides):
            return None
        axes = same_stack(arrays[-1].shape[:-2], *([step // x.itemsize for step in x.strides[:-2]] for x in arrays))
        inner = [(x.strides[-2] // x.itemsize, x.strides[-1] // x.itemsize) for x in arrays]
        m = problem.m
        while axes and self._is_one_product(m, [rows for rows, _ in inner], axes[-1][1]):
            m *= axes.pop()[0]
        shape = ffi.new("int64_t[]", [length for length, _ in axes])
        steps = [ffi.new("int64_t[]", [step[i] for _, step in axes]) for i in range(4)]
        plan = ffi.new(
            "gemm_plan *",
            (
                ffi.addressof(getattr(self._lib, self._kernel.name)), m, problem.n, problem.k,
                params["MC"], params["KC"], params["NC"], self._threads, 0, problem.reproducible, len(axes), shape,
                *((*pair, batch) for pair, batch in zip(inner, steps, strict=True)),
            ),
        )  # fmt: skip
        return plan, (shape, steps)

    @staticmethod
    def _is_one_product(m: int, rows: list[int], step: tuple[int, ...]) -> bool:
        """Whether a stack with one b for all is a single product of more rows, each matrix following the one before."""
        return step[1] == 0 and all(step[i] == m * rows[i] for i in (0, 2, 3))


def _through_copies(launch: Launch, a: Any, b: Any, c: Any, out: Any, alpha: float, beta: float) -> None:
    """The launch for operands that are not aligned to their elements, such as fields of packed records."""
    try:
        a, b, c = (None if x is None else np.array(x, order="C") for x in (a, b, c))
        result = np.empty(out.shape, out.dtype)
    except MemoryError as error:
        raise KernelFailed("no memory for aligned copies of the operands", memory=True) from error
    launch(a, b, c, result, alpha, beta)
    out[...] = result

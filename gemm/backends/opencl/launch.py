"""A kernel that is built for a device, and the launches with which it computes products of any size and strides."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from math import prod
from operator import is_not
from typing import Any

import numpy as np

from gemm.backends.opencl.layout import MOST, PACKED, STRIDED, Layout, Tile, in_place, layouts, part, stacked, tile
from gemm.backends.opencl.mapped import owner, shared_views
from gemm.backends.opencl.replay import HOST_BYTES, MOST_COMMANDS, HostReplay, Replay, signature
from gemm.backends.opencl.staging import Command, Kept, Traffic
from gemm.catalog import Kernel
from gemm.core import disk_cache
from gemm.core.errors import KernelFailed
from gemm.core.operands import identical, same_stack, transposed
from gemm.core.problem import NARROW, Device, DeviceView, Ints, Operand, Problem


class Launcher:
    """A launch of a kernel on a device (see gemm.core.backend.Launch)."""

    signature = staticmethod(signature)

    def __init__(self, kernel: Kernel, device: Device, problem: Problem) -> None:
        self._last = threading.local()
        self.kernel, self.device, self.handle = kernel, device, device.handle
        self.dtype = np.dtype(problem.dtype)  # of c and out
        self.sums = np.dtype(np.float32) if self.dtype.name in NARROW else self.dtype
        if problem.reproducible and self.sums == np.float32 and "denorms" not in device.features:
            raise KernelFailed(f"{device.name} flushes denormals: it cannot offer reproducible=True")
        self.ordered = problem.reproducible
        self.swaps = kernel.swaps(problem.m, problem.n, problem.layout)
        self.a, self.b = layouts(kernel.params, problem.reproducible)
        # fma() is correct on every device, but slow on some. OpenCL requires a fast fma() only for double.
        fused = "slow_fma" not in device.features and ("fma" in device.features or self.dtype == np.float64)
        defines = {name: value for name, value in kernel.params.items() if name.isupper()}
        bits = 8 * problem.itemsizes[0]
        defines |= {"PRECISION": bits, "ORDERED": int(problem.reproducible), "FUSED": int(fused)}
        defines |= {"BFLOAT16": 1} if "bfloat16" in (problem.dtype, *problem.inputs) else {}
        # Integer dot products need OpenCL C 3.0, which is not the compiler's default.
        standard = ["-cl-std=CL3.0"] if "integer_dot_product" in kernel.needs else []
        standard += ["-cl-intel-256-GRF-per-thread"] if kernel.params.get("grf") == 256 else []
        # The vendors' examples use -cl-fast-relaxed-math, -cl-finite-math-only or -cl-denorms-are-zero. gemm does
        # not: NaN and Inf must propagate, and -0 and denormals must be preserved.
        self.options = " ".join([*(f"-D {name}={value}" for name, value in defines.items()), *standard])
        self.source = disk_cache.read(kernel)
        with self.handle.reported(f"{kernel.name} on {device.name}"):
            self.limit, self.fixed = self._groups()

    def _groups(self) -> tuple[int, tuple[int, int] | None]:
        """Return (limit, required): two properties of the built kernel.

        `limit` is the maximum number of work-items in a work-group. It may be less than the device's limit. `required`
        is the work-group size that the kernel requires, or None.
        """
        import pyopencl as cl

        built, info = self.handle.kernel(*self._program()), cl.kernel_work_group_info
        limit = min(
            built.get_work_group_info(info.WORK_GROUP_SIZE, self.handle.cl_device), self.device.limits["work_group"]
        )
        wanted = tuple(built.get_work_group_info(info.COMPILE_WORK_GROUP_SIZE, self.handle.cl_device))
        if not wanted[0]:
            return limit, None
        if prod(wanted) > limit:
            raise KernelFailed(f"it needs work-groups of {prod(wanted)} work-items; the device permits at most {limit}")
        return limit, (wanted[0], wanted[1])

    def _program(self, variant: str = "") -> tuple[str, str, str]:
        """Return (source, options, name of the entry function) of the kernel. `variant` is "" or a macro to define."""
        return self.source, self.options + f" -D {variant}=1" * bool(variant), self.kernel.entry

    def replay(self, a: Any, b: Any, c: Any, out: Any, bias: None = None) -> Replay | HostReplay | None:
        """Return a Replay that repeats this thread's last launch, or None if the launch cannot be repeated.

        For NumPy arrays, each thread's first call for this launcher returns None. The arguments are the pyopencl or
        NumPy arrays of the launch. b is None if it is prepacked. c is None if the launch does not read c. bias is
        always None: no OpenCL kernel adds a bias.
        """
        launcher, traffic = self.handle.latest.launch or (None, None)
        self.handle.latest.launch = None
        if launcher is not self or traffic is None:
            return None
        if not traffic.repeatable or len(traffic.commands) > MOST_COMMANDS:
            return None
        if isinstance(out, np.ndarray):
            # Many products are computed only once. Allocating the memory of a HostReplay would take longer than it
            # saves.
            second, self._last.second = getattr(self._last, "second", False), True
            return self._host_replay(traffic, (a, b, c, out)) if second else None
        if out.queue is None:
            return None
        # After a failure between two writes, c is lost. A Replay could not report this; `__call__` can.
        if c is out and traffic.writes > 1:
            return None
        if traffic.nbytes > self.handle.replay_limit:
            return None
        with self.handle.reported(f"{self.kernel.name} on {self.device.name}"):
            return Replay(self.handle, traffic, self.scale, (a, b, c, out))

    def _host_replay(self, traffic: Traffic, arrays: tuple[Any, ...]) -> HostReplay | None:
        names = ["b", "a", "c", "out"] if self.swaps and arrays[1] is not None else ["a", "b", "c", "out"]
        places = tuple(names.index(copy.name) for copy in traffic.copies)
        for at, copy in zip(places, traffic.copies, strict=True):
            # If an address differs, the launch read a copy instead of the caller's array.
            if arrays[at] is None or arrays[at].__array_interface__["data"][0] != copy.address:
                return None
        if places[-1:] != (3,):
            return None
        with self.handle.reported(f"{self.kernel.name} on {self.device.name}"):
            return HostReplay(self.handle, traffic, self.scale, arrays[3], places)

    def __call__(self, a: Operand, b: Operand, c: Operand | None, out: Operand, alpha: float, beta: float) -> None:
        # A prepacked matrix has the layout of the right operand, so it cannot become the left operand.
        if self.swaps and not (isinstance(b, DeviceView) and isinstance(b.owner, Kept)):
            a, b, out = transposed(b), transposed(a), transposed(out)
            c = None if c is None else transposed(c)
        self._last.wrote = False
        kept = None
        try:
            with self.handle.reported(f"{self.kernel.name} on {self.device.name}"):
                if isinstance(out, DeviceView):
                    self.handle.latest.launch = self, self._launch(a, b, c, out, alpha, beta)
                    return
                layouts, given = (self.a, self.b, STRIDED, STRIDED), (a, b, c, out)
                with shared_views(self.device, given, layouts) as (x, y, z, goal):
                    if c is not None and identical(c, out) and not owner(out) and self._may_be_torn(x, y, z, goal):
                        kept = out.copy()
                    traffic = self._launch(x, y, z, goal, alpha, beta)
                    # A launch with views of host memory cannot be repeated, because the views end here.
                    if not any(map(is_not, given, (x, y, z, goal))) and traffic.nbytes <= HOST_BYTES:
                        self.handle.latest.launch = self, traffic
        except KernelFailed as error:
            if self._last.wrote and c is not None and identical(c, out):
                if kept is None:
                    words = f"{error}; out, which is c, is partly written"
                    raise KernelFailed(words, lost=error.lost, spoilt=True) from error
                out[...] = kept  # type: ignore[index]
            raise

    def access(self, a: Operand, b: Operand, c: Operand | None, out: Operand) -> dict[str, str]:
        """Return what a launch does with each operand: {name: "used in place", "packed on the device" or "copied"}."""
        layouts = self.a, self.b, STRIDED, STRIDED

        def access(x: Any, layout: Layout) -> str:
            if not isinstance(x, DeviceView):
                return "copied"
            one = stacked(x, (1,), (0,))  # all matrices of the stack have the same layout
            one = transposed(one) if layout.turned else one
            assert isinstance(one, DeviceView)
            used = isinstance(x.owner, Kept) or in_place(self.handle, one, layout)
            return "used in place" if used else "packed on the device"

        with ExitStack() as stack, self.handle.reported(f"{self.kernel.name} on {self.device.name}"):
            seen = [a, b, c, out]
            if not isinstance(out, DeviceView):
                seen = stack.enter_context(shared_views(self.device, seen, layouts))
            names = zip(("a", "b", "c", "out"), seen, layouts, strict=True)
            return {name: access(x, layout) for name, x, layout in names if x is not None}

    def _may_be_torn(self, a: Operand, b: Operand, c: Operand | None, out: Operand) -> bool:
        """Return whether a launch that fails may leave `out` partly written."""
        step, (m, n) = self._tile(a, b, c, out), out.shape[-2:]
        cut = step.m < m or step.n < n or out.ndim > 3 or (out.ndim == 3 and step.batch < out.shape[0])
        return cut or isinstance(out, DeviceView)

    def _launch(self, a: Operand, b: Operand, c: Operand | None, out: Operand, alpha: float, beta: float) -> Traffic:
        given = [a, b, out] if c is None else [a, b, out, c]
        queue, events = self.handle.queue, []
        if isinstance(out, DeviceView):
            queue = out.queue or queue
            # Each pyopencl Array has the events of the commands that still write to it, on any queue.
            events = [event for o in given if isinstance(o, DeviceView) for event in o.owner.events]
        traffic = Traffic(self.handle, queue, events)
        self.handle.latest.launch = None

        axes = same_stack(out.shape[:-2], *(o.strides[:-2] for o in given)) or [(1, (0,) * len(given))]
        lengths = tuple(length for length, _ in axes)
        stacks = [stacked(o, lengths, tuple(steps[at] for _, steps in axes)) for at, o in enumerate(given)]
        step = self._tile(a, b, c, out)
        corners = list(step.corners(lengths[-1], *out.shape[-2:]))
        try:
            for index in np.ndindex(*lengths[:-1]):
                for corner in corners:
                    self._one(traffic, stacks, index, corner, step.k, (alpha, beta))
        finally:
            self._last.wrote = traffic.writes > 0
        traffic.release()
        if isinstance(out, DeviceView):
            out.owner.add_event(traffic.after[-1])
            queue.flush()
        return traffic

    def scale(self, alpha: Any, beta: Any) -> np.ndarray:
        """Return alpha and beta in the format that kernels take."""
        return np.array((alpha, beta), self.dtype).astype(self.sums)

    def _tile(self, a: Operand, b: Operand, c: Operand | None, out: Operand) -> Tile:
        (m, k), n, limits = a.shape[-2:], b.shape[-1], self.device.limits
        kept = isinstance(b, DeviceView) and isinstance(b.owner, Kept)
        right = Layout(k, n) if kept else self.b  # padded to the whole matrix: a prepacked matrix cannot be cut
        rows, cols = "km" if self.a.turned else "mk"
        operands = (a, self.a, rows, cols), (b, right, "k", "n"), (c, STRIDED, "m", "n"), (out, STRIDED, "m", "n")
        staged = tuple(
            (layout, *axes)
            for operand, layout, *axes in operands
            # A device operand that the kernel reads with any strides is used in place.
            if operand is not None and not (isinstance(operand, DeviceView) and layout.strided)
        )
        most = min(limits["max_alloc"], limits["global_memory"] // 5)  # a fifth each for a, b, c, out and reserve
        most = min(most, MOST * self.dtype.itemsize)
        image = limits["image_width"], limits["image_height"]
        return tile((m, n, k), staged, self.dtype.itemsize, image, most)

    def _one(
        self, traffic: Traffic, stacks: list[Operand], index: Ints, corner: tuple[slice, slice, slice],
        most: int, scalars: tuple[float, float],
    ) -> None:  # fmt: skip
        """Compute one tile of out, in pieces of at most `most` elements along k, each by one launch.

        A launch continues from the raw sums of the piece before. If there is only one piece, it may be cut into parts:
        one launch computes the raw sums of all parts, and `_add_parts` adds them up.
        """
        a, b, out = stacks[:3]
        k, (batch, rows, cols) = a.shape[-1], corner
        goal = part(out, index, *corner)
        c = part(stacks[3], index, *corner) if len(stacks) > 3 else None
        count, height, width = goal.shape
        pieces = [slice(start, min(start + most, k)) for start in range(0, k, most or 1)] or [slice(0, 0)]
        ends, scale = self._ends(traffic, goal, c, copy=len(pieces) > 1), self.scale(*scalars)
        extent, group = self._extent(width, height)
        groups = prod(extent) // prod(group) * count
        whole = self.ordered or len(pieces) > 1
        share = k if whole else self.kernel.share(k, groups, self.device.limits["compute_units"])
        parts = -(-k // share) if share < k else 1
        variant = "PIECES" if len(pieces) > 1 else "SPLIT" if parts > 1 else ""
        raw: tuple[Any, ...] = ()
        if parts > 1 or (variant and self.sums != self.dtype):  # out cannot store the raw sums
            raw = (traffic.reserve("raw", (count * parts, height, width), self.sums, PACKED, host=False)[0].data,)
        for piece in pieces:
            x, y = part(a, index, batch, rows, piece), part(b, index, batch, piece, cols)
            left, right = traffic.load("a", transposed(x) if self.a.turned else x, self.a), traffic.load("b", y, self.b)
            steps = self.b.padded(piece.stop - piece.start, 1)[0]
            # the length of a part; or the sum of 1 to resume from raw sums, and 2 to apply alpha and beta
            stage = share if parts > 1 else (piece.start > 0) + 2 * (piece.stop == k)
            size = np.array((height, width, steps, stage), np.int32)
            args, program = (*left.args, *right.args, *ends, size), self._program(variant)
            where = (*extent, count * parts), (*group, 1)
            traffic.run(Command(program, *where, (*args, scale, *raw), scale=len(args)))
            traffic.writes += isinstance(goal, DeviceView)
        if parts > 1:
            self._add_parts(traffic, goal.shape, (*raw, np.int32(parts), *ends, size), scale)
        if not isinstance(goal, DeviceView):
            traffic.fetch("out", goal)

    def _add_parts(self, traffic: Traffic, shape: Ints, args: tuple[Any, ...], scale: np.ndarray) -> None:
        """Add up the raw sums of the parts of k for a tile of the given shape."""
        count, height, width = shape
        lanes = min(128, self.limit)
        program = disk_cache.read("kernels/opencl/pack/sum_parts.cl"), self.options, "sum_parts"
        where = (-(-width // lanes) * lanes, height, count), (lanes, 1, 1)
        traffic.run(Command(program, *where, (*args, scale), scale=len(args)))

    def _ends(self, traffic: Traffic, goal: Operand, c: Operand | None, *, copy: bool) -> tuple[Any, ...]:
        """Return the kernel's arguments for c and out.

        With several pieces along k, the kernel stores raw sums in out, and out may also be c. `copy` must then be set:
        the kernel reads a copy of c.
        """
        if isinstance(goal, DeviceView):
            target = traffic.load("out", goal, STRIDED)
        else:
            target, _ = traffic.reserve("out", goal.shape, self.dtype, PACKED, host=True)
        # If c is None, the kernel does not read this argument.
        addend = target if c is None else traffic.load("c", c, STRIDED, copy=copy)
        return *addend.args, *target.args

    def _extent(self, width: int, height: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the numbers of work-items for a tile of out, and the work-group size, each as (along n, along m).

        If the kernel requires a work-group size, the result has this size. Otherwise it has the size that the catalog
        prefers for the kernel (WGN and WGM), reduced to fit the tile and the kernel's limit.
        """
        params = self.kernel.params
        if self.fixed:
            tall, wide = self.kernel.group
            return (-(-width // wide) * self.fixed[0], -(-height // tall) * self.fixed[1]), self.fixed
        items = -(-width // params.get("TN", 1)), -(-height // params.get("TM", 1))
        # The sizes are powers of two, because some drivers compile the kernel again for each work-group size.
        x, y = (
            min(params.get(name, 8), 1 << (count - 1).bit_length())
            for name, count in zip(("WGN", "WGM"), items, strict=True)
        )
        while x * y > self.limit:
            x, y = (max(1, x // 2), y) if x >= y else (x, max(1, y // 2))
        return (-(-items[0] // x) * x, -(-items[1] // y) * y), (x, y)

"""The backends of this process, made on first use."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import cast

from gemm.catalog import BACKENDS
from gemm.core.backend import Backend
from gemm.core.errors import BackendUnavailable


@cache
def backend(name: str) -> Backend:
    """The backend called `name` (a key of BACKENDS). Loads its module, not yet its devices."""
    module, _, cls = BACKENDS[name].partition(":")
    return cast(Backend, getattr(import_module(module), cls)())


def absent(name: str) -> BackendUnavailable:
    """The error for a device, such as "opencl:3", that is not among its backend's devices. Raises theirs."""
    owner = backend(name.partition(":")[0])
    there = ", ".join(device.key for device in owner.devices())
    why = owner.left_out.get(name)
    return BackendUnavailable(name, why or f"no such device; there is {there}")

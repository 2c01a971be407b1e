"""The backends of this process. Each backend is created on first use."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import cast

from gemm.backends.opencl import add_intel_runtime
from gemm.catalog import BACKENDS
from gemm.core.backend import Backend
from gemm.core.errors import BackendUnavailable


@cache
def backend(name: str) -> Backend:
    """Return the backend `name` (a key of BACKENDS). Imports the backend's module, but does not look for devices."""
    module, _, cls = BACKENDS[name].partition(":")
    return cast(Backend, getattr(import_module(module), cls)())


def register_drivers() -> None:
    """Make the drivers known that pip installed but that their loader would not find. Loads no driver.

    This may change an environment variable that selects drivers.
    """
    add_intel_runtime()


def absent(name: str) -> BackendUnavailable:
    """Return the error for a device key, such as "opencl:3", that names no usable device.

    Raises BackendUnavailable if the backend cannot list its devices at all.
    """
    owner = backend(name.partition(":")[0])
    there = ", ".join(device.key for device in owner.devices())
    why = owner.left_out.get(name)
    return BackendUnavailable(name, why or f"no such device; there is {there}")

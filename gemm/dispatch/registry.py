"""The backends of this process, made on first use."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import cast

from gemm.backends.base import Backend
from gemm.catalog import BACKENDS


@cache
def backend(name: str) -> Backend:
    """The backend called `name` (a key of BACKENDS). Loads its module, not yet its devices."""
    module, _, cls = BACKENDS[name].partition(":")
    return cast(Backend, getattr(import_module(module), cls)())

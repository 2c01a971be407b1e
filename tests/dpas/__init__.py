"""Intel's matrix units on OpenCL devices that have only Intel's sub-groups, such as Intel's runtime for CPUs.

emulated.cl has the functions of the extension. The kernels are the ones of the package, unchanged.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gemm.backends.opencl import backend, context

SOURCE = (Path(__file__).parent / "emulated.cl").read_text(encoding="utf-8")
WIDTHS = (8, 16)


def emulate():
    """Give the matrix units of all generations to the devices that this process finds from now on."""
    describe, build = backend.describe, context.Handle._build

    def described(cl_device, key, handle):
        device = describe(cl_device, key, handle)
        found = {f"intel_dpas_{width}" for width in WIDTHS if f"subgroup_size_{width}" in device.features}
        found |= {"intel_subgroup_2d_block_io"} if f"intel_dpas_{WIDTHS[-1]}" in found else set()
        return replace(device, features=device.features | found)

    def built(handle, source, options):
        if "_matrix_mad_" in source:
            source = SOURCE + source
            # Compilers for CPUs do not know the option, and take up to 30 s to optimise tiles that need it.
            options = options.replace("-cl-intel-256-GRF-per-thread", "-cl-opt-disable")
        return build(handle, source, options)

    backend.describe, context.Handle._build = described, built

"""Matrix units of Intel's and AMD's GPUs on OpenCL devices that have only Intel's sub-groups, such as Intel's runtime
for CPUs.

dpas.cl and wmma.cl have the functions of the units, and arithmetic.cl their sums. The kernels are the ones of the
package, unchanged.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gemm.backends.opencl import backend, context

FAMILIES = ("intel", "gfx11", "gfx12")
WIDTHS = (8, 16)


def _source(name: str) -> str:
    return "".join(Path(__file__).with_name(f"{part}.cl").read_text(encoding="utf-8") for part in ("arithmetic", name))


def _features(families: list[str], features: frozenset[str]) -> set[str]:
    found = set[str]()
    if "intel" in families:
        found |= {f"intel_dpas_{width}" for width in WIDTHS if f"subgroup_size_{width}" in features}
        found |= {"intel_subgroup_2d_block_io"} if f"intel_dpas_{WIDTHS[-1]}" in found else set()
    if "subgroup_size_32" in features:
        found |= {feature for family in families for feature in backend._amd(f"{family}00") - {"rdna"}}
    return found


def emulate(families: list[str]) -> None:
    """Give the matrix units of `families` to the devices that this process finds from now on.

    At most one of `families` is AMD's.
    """
    describe, build = backend.describe, context.Handle._build

    def described(cl_device, key, handle):
        device = describe(cl_device, key, handle)
        return replace(device, features=device.features | _features(families, device.features))

    def built(handle, source, options):
        if "_matrix_mad_" in source:
            source = _source("dpas") + source
            # Compilers for CPUs do not know the option, and take up to 30 s to optimise tiles that need it.
            options = options.replace("-cl-intel-256-GRF-per-thread", "-cl-opt-disable")
        elif "_amdgcn_wmma_" in source:
            source = source.replace("kernel void", "__attribute__((intel_reqd_sub_group_size(32))) kernel void")
            source = "#define __GFX12__ 1\n" * ("gfx12" in families) + _source("wmma") + source
            # The compiler takes up to a minute to optimise the large tiles.
            options = options.replace("-D TM=64", "-D TM=64 -cl-opt-disable")
        return build(handle, source, options)

    backend.describe, context.Handle._build = described, built

"""Print this machine's CPU features as JSON, as the operating system's kernel reports them, independent of gemm."""

import ctypes
import json
import platform
import re
from pathlib import Path

AT_HWCAP, AT_HWCAP2 = 16, 26
ARM = {
    AT_HWCAP: {"neon": 1, "fp16": 10, "dotprod": 20, "sve": 22, "fhm": 23},
    AT_HWCAP2: {"i8mm": 13, "bf16": 14, "sme": 23, "smef64f64": 25},
}
"""{argument of Linux's getauxval(): {the catalog's name of a CPU feature: its bit in the result}}."""


def features() -> list[str]:
    """The CPU's features, by the names that the catalog uses."""
    if platform.machine() == "aarch64":  # under emulation, /proc/cpuinfo describes the host
        getauxval = ctypes.CDLL(None).getauxval
        getauxval.argtypes, getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
        return sorted(name for word, bits in ARM.items() for name, bit in bits.items() if getauxval(word) >> bit & 1)
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    # Linux writes avx512_vnni where the catalog has avx512vnni.
    return sorted(flags[1].replace("_", "").split()) if flags else []


if __name__ == "__main__":
    print(json.dumps({"machine": platform.machine(), "features": features()}))

"""check_dist.py SDIST WHEEL: check that the sdist has every source, and the wheel every source compiled at run time."""

import sys
import tarfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "gemm"))
from catalog import KERNELS  # not through gemm, because importing the package needs NumPy

sdist, wheel = sys.argv[1:]

with tarfile.open(sdist) as archive:
    packed = {name.partition("/")[2] for name in archive.getnames()}
missing = [f"{row.source} is not in the sdist" for row in KERNELS if row.source not in packed]

shipped = set(zipfile.ZipFile(wheel).namelist())
root = Path(__file__).parents[1]
compiled = {row.source for row in KERNELS if row.backend in ("opencl", "cuda")}
compiled |= {  # headers, too
    file.relative_to(root).as_posix()
    for tree in ("kernels/opencl", "csrc/cuda") for file in (root / tree).rglob("*.c*") if file.is_file()
}  # fmt: skip
missing += [f"{source} is not in the wheel" for source in compiled if f"gemm/_sources/{source}" not in shipped]
tuned = sorted(f"gemm/tuned/{file.name}" for file in (root / "gemm" / "tuned").glob("*.json"))
libgemm = (
    "gemm/include/gemm_cblas.h", "gemm/lib/libgemm.so", "gemm/lib/pkgconfig/gemm.pc",
    "gemm/lib/cmake/gemm/gemm-config.cmake", "gemm/lib/cmake/gemm/gemm-config-version.cmake",
)  # fmt: skip
compared = ("gemm/bench/page.html", "gemm/bench/page.css", "gemm/bench/peers/native.c")
missing += [
    f"{name} is not in the wheel" for name in ("gemm/py.typed", *libgemm, *compared, *tuned) if name not in shipped
]
if not any(name.startswith("gemm/_cpu.") for name in shipped):
    missing.append("the compiled gemm/_cpu is not in the wheel")

print("\n".join(sorted(set(missing))) or f"{len(KERNELS)} rows: all sources are there")
sys.exit(bool(missing))

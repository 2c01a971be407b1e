"""libgemm in programs: compiled, linked, its errors and what it does without memory. Netlib's testers: ci/netlib.sh."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import helpers
import numpy as np
import pytest
from helpers import ROOT, python

import gemm
from gemm.frontend import inventory

PROGRAMS = ROOT / "tests" / "c_programs"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="libgemm is built by compilers with GCC's options")


def run(*command, **environment):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300, check=False,
                          env=os.environ | environment)  # fmt: skip
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done


def test_the_python_extension_keeps_apart():
    """It exports none of BLAS's names, and calls its own functions though libgemm's of the same name came first."""
    extension = ctypes.CDLL(sys.modules["gemm._cpu"].__file__)
    assert not [name for name in ("cblas_sgemm", "dgemm_", "cblas_xerbla", "xerbla_") if hasattr(extension, name)]
    script = f"""import ctypes
blas = ctypes.CDLL({gemm.get_library()!r}, ctypes.RTLD_GLOBAL)
assert blas.gemm_get_num_threads() == 1  # by GEMM_NUM_THREADS
blas.gemm_set_num_threads(5)
import gemm
gemm.set_num_threads(3)
print(blas.gemm_get_num_threads(), gemm.get_num_threads())"""
    assert python(script, GEMM_NUM_THREADS=1) == "5 3\n"


def test_where_the_library_is(monkeypatch, tmp_path):
    words = helpers.run("-m", "gemm", "info", "--cc").split()
    assert words == inventory.compiler_words().split()
    assert Path(gemm.get_include(), "gemm_cblas.h").is_file()
    monkeypatch.setattr(inventory, "_PACKAGE", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"python build\.py"):
        gemm.get_library()


@pytest.fixture(scope="module")
def cc():
    found = shutil.which("cc") or shutil.which("gcc")
    if not found:
        pytest.skip("no C compiler")
    return found


@pytest.fixture(scope="module")
def prefix(cc, tmp_path_factory):
    """What `python build.py --library` makes, by an interpreter without packages; -O0 is sooner done."""
    folder = tmp_path_factory.mktemp("library")
    helpers.run("-S", ROOT / "build.py", "--library", folder, CFLAGS="-O0")
    return folder


STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1")


@pytest.mark.slow
def test_document_s_program_prints_what_the_document_says(cc, prefix, tmp_path):
    text = (ROOT / "docs" / "c-api.md").read_text(encoding="utf-8")
    (source,), (printed,) = (re.findall(rf"^```{kind}\n(.*?)^```", text, re.M | re.S) for kind in ("c", "text"))
    program = tmp_path / "program.c"
    program.write_text(source, encoding="utf-8")
    static = (f"-I{prefix}/include", f"{prefix}/lib/libgemm.a", "-lm", "-pthread")
    for words in (inventory.compiler_words().split(), static):
        run(cc, "-std=c99", *STRICT, program, *words, "-o", tmp_path / "program")
        assert run(tmp_path / "program").stdout == printed


@pytest.mark.parametrize("name", ["cblas_dgemm", "cblas_dgemm_64", "cblas_dgemm64_", "dgemm_", "dgemm_64_"])
def test_sizes_of_32_and_of_64_bits(name):
    """Netlib's and MKL's names of routines with 64-bit sizes, and OpenBLAS's. Upper halves of sizes are read."""
    library, rng = ctypes.CDLL(gemm.get_library()), np.random.default_rng(0)
    integer = ctypes.c_int64 if "64" in name else ctypes.c_int32
    a, b, c = rng.standard_normal((5, 3)), rng.standard_normal((3, 7)), np.zeros((5, 7))

    def call(m):
        sizes, addresses = (
            list(map(integer, (m, 7, 3, 3, 7, 7))),
            [x.ctypes.data_as(ctypes.c_void_p) for x in (a, b, c)],
        )
        m, n, k, lda, ldb, ldc = sizes
        one, zero = ctypes.c_double(1), ctypes.c_double(0)
        if name.startswith("cblas"):
            x, y, z = addresses
            return getattr(library, name)(101, 111, 111, m, n, k, one, x, lda, y, ldb, zero, z, ldc)
        y, x, z = addresses[1], addresses[0], addresses[2]  # column-major: the transposes' product
        given = (b"N", b"N", *map(ctypes.byref, (n, m, k, one)), y, ctypes.byref(ldb), x, ctypes.byref(lda),
                 ctypes.byref(zero), z, ctypes.byref(ldc))  # fmt: skip
        return getattr(library, name)(*given)

    call(5)
    np.testing.assert_allclose(c, a @ b, rtol=1e-14)
    if integer is ctypes.c_int64:  # negative in 64 bits, 5 in 32: reported, nothing is computed
        c[:] = 7
        call(5 - (1 << 40))
        assert (c == 7).all()


@pytest.mark.slow
def test_pkg_config_finds_it(cc, prefix, tmp_path):
    if not (program := shutil.which("pkg-config")):
        pytest.skip("no pkg-config")
    for folder in (prefix / "lib", Path(gemm.get_library()).parent):
        found = run(program, "--cflags", "--libs", "gemm", PKG_CONFIG_PATH=str(folder / "pkgconfig")).stdout.split()
        run(cc, PROGRAMS / "errors.c", *found, "-o", tmp_path / "errors")
        assert "Parameter 1 to routine cblas_sgemm" in run(tmp_path / "errors").stderr


@pytest.mark.slow
def test_cmake_finds_it(prefix, tmp_path):
    if not (program := shutil.which("cmake")):
        pytest.skip("no cmake")
    (tmp_path / "CMakeLists.txt").write_text(f"""cmake_minimum_required(VERSION 3.16)
project(errors C)
find_package(gemm {gemm.__version__} REQUIRED)
foreach(form gemm static)
  add_executable(${{form}} {PROGRAMS / "errors.c"})
  target_link_libraries(${{form}} gemm::${{form}})
endforeach()
""")
    run(program, "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run(program, "--build", tmp_path / "build")
    for form in ("gemm", "static"):
        assert "Parameter 1 to routine cblas_sgemm" in run(tmp_path / "build" / form).stderr


def test_header_is_c_plus_plus_too(tmp_path):
    if not (compiler := shutil.which("c++")):
        pytest.skip("no C++ compiler")
    (tmp_path / "x.cpp").write_text('#include "gemm_cblas.h"\nint main() { return gemm_get_num_threads() < 1; }\n')
    run(compiler, *STRICT, tmp_path / "x.cpp", *inventory.compiler_words().split(), "-o", tmp_path / "x")
    run(tmp_path / "x")


REPORTS = [
    *(f"{at} cblas_sgemm" for at in (1, 2, 3, 4, 5, 6, 9, 9, 9, 11, 11, 14, 14, 9, 8, 10, 13, 13)), "13 cblas_zgemm",
    *(f"{at} cblas_sgemm_batch_strided" for at in (4, 9, 12, 16, 11, 18, 15)),
    *(f"{at} cblas_sgemm_batch" for at in (11, 15, 16)),
    *(f"{at} SGEMM " for at in (1, 2, 3, 8, 10)), "13 ZGEMM ",
]  # fmt: skip
"""What tests/c_programs/errors.c is told, call by call."""


@pytest.mark.parametrize("link", ["dynamic", "static"])
def test_errors_are_reported_and_nothing_is_written(cc, prefix, tmp_path, link):
    words = inventory.compiler_words().split()
    if link == "static":
        words = [f"-I{prefix}/include", f"{prefix}/lib/libgemm.a", "-lm", "-pthread"]
    program = tmp_path / "errors"
    run(cc, *STRICT, "-DHANDLERS", PROGRAMS / "errors.c", *words, "-o", program)
    assert run(program).stdout.splitlines() == REPORTS
    run(cc, *STRICT, PROGRAMS / "errors.c", *words, "-o", program)  # by the library's own handlers
    wanted = [f"Parameter {at} to routine {name} was incorrect" for at, _, name in (r.partition(" ") for r in REPORTS)]
    assert run(program).stderr.splitlines() == wanted


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs GNU's linker")
def test_products_without_memory(cc, prefix, tmp_path):
    """BLAS has no way to fail: where there is no memory to pack into, the bits are the same."""
    program = tmp_path / "no_memory"
    words = (f"-I{prefix}/include", f"{prefix}/lib/libgemm.a", "-lm", "-pthread", "-Wl,--wrap=malloc")
    run(cc, *STRICT, PROGRAMS / "no_memory.c", *words, "-o", program)
    for isa in ("", "scalar"):
        assert run(program, GEMM_CPU_ISA=isa).stdout == "the same bits\n"


@pytest.mark.parametrize(("header", "given", "missing"), [
    ("tile.h", (), "NAME T MR NV TALLEST TILES FMA ACCUMULATORS"),
    ("tile.h", ("V",), "VL LOAD STORE SPLAT PART PART_OF LOAD_PART STORE_PART"),
    ("tile.h", ("TRANSPOSE", "IN"), "TRANSPOSE_DEPTH WIDEN_IN SPLAT_IN LOAD_IN LOAD_IN_PART"),
    ("panel.h", (), "KERNEL MR NV VL K_GROUP A B C SUM PA PB ACC ROW STEP"),
    ("panel.h", ("OFFSET", "ENTER"), "SUBTRACT LEAVE"),
], ids=str)  # fmt: skip
def test_a_missing_parameter_of_a_kernel_is_named(cc, tmp_path, header, given, missing):
    source = tmp_path / "kernel.c"
    source.write_text("".join(f"#define {name}\n" for name in given) + f'#include "{header}"\n', encoding="utf-8")
    command = [cc, "-fsyntax-only", f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'gemm' / 'include'}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode
    assert set(missing.split()) <= set(re.findall(rf"{header} needs (\w+)", done.stderr)), done.stderr


DEBIAN = "/usr/bin/python3"
"""The interpreter whose NumPy and SciPy, from Debian, call a BLAS that is a library of its own."""
PRELOADED = {
    "numpy": ([DEBIAN, "-c", """
import numpy as np
a, b = np.random.default_rng(0).standard_normal((2, 70, 70))
for t in "fdFD":
    assert np.allclose(a.astype(t) @ b.astype(t), np.einsum("ij,jk", a, b), rtol=1e-3, atol=1e-3)
"""], [f"cblas_{letter}gemm" for letter in "sdcz"]),
    "scipy": ([DEBIAN, "-c", """
import numpy as np, scipy.linalg.blas as blas
a, b = np.random.default_rng(0).standard_normal((2, 70, 70))
for letter in "sdcz":
    assert np.allclose(getattr(blas, f"{letter}gemm")(1, a, b), np.einsum("ij,jk", a, b), rtol=1e-3, atol=1e-3)
"""], [f"{letter}gemm_" for letter in "sdcz"]),
    "R": (["Rscript", "-e", """
a <- matrix(rnorm(4900), 70); b <- matrix(rnorm(4900), 70); c <- a %*% b
stopifnot(abs(c[3, 5] - sum(a[3, ] * b[, 5])) < 1e-10)
"""], ["dgemm_"]),
}  # fmt: skip
"""{program: its command, and the functions of libgemm that it must call}. docs/c-api.md has the recipe."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD belongs to Linux")
@pytest.mark.parametrize("program", PRELOADED)
def test_preloaded_it_computes_other_programs_products(program):
    command, functions = PRELOADED[program]
    has = [DEBIAN, "-c", f"import {program}"] if program != "R" else [*command[:2], "1"]
    if not shutil.which(has[0]) or subprocess.run(has, capture_output=True, check=False).returncode:
        pytest.skip(f"{program} of Debian is not installed")
    library = gemm.get_library()
    told = run(*command, LD_PRELOAD=library, LD_DEBUG="bindings", LD_BIND_NOW="").stderr
    bound = set(re.findall(rf"binding file .* to {re.escape(library)} \[0\]: normal symbol `(\w+)'", told))
    assert bound >= set(functions), f"{program} calls only {sorted(bound)}"

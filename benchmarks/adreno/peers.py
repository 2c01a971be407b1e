"""Kernels of other libraries, read from checkouts: CLBlast's, as its database tunes them for a GPU, and llama.cpp's."""

from __future__ import annotations

import re
from pathlib import Path

from adreno.tool import Case, Failed

# The definitions that CLBlast itself puts before its sources on Adreno.
_CLBLAST_HEAD = "".join(
    f"#define {name} 1\n"
    for name in ("USE_INLINE_KEYWORD", "USE_CL_MAD", "GLOBAL_MEM_FENCE", "RELAX_WORKGROUP_SIZE", "ROUTINE_GEMM")
)
_CLBLAST_PARTS = ("common", *(f"level3/{name}" for name in ("level3", *(f"xgemm_part{part}" for part in range(1, 5)))))
_ENTRY = re.compile(
    r'"(default|OpenCL C [\d.]+ Adreno\(TM\) (\w+))", \{\s*\{ Name\{"QUALCOMM[^}]*\}, Params\{([^}]*)\}'
)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise Failed(f"{file} cannot be read: {error}") from error


def clblast(checkout: Path, gpu: str, bits: int) -> Case:
    """CLBlast's Xgemm in float32 or float16, with the parameters of its database for `gpu`, or else for any Adreno."""
    database = _text(checkout / f"src/database/kernels/xgemm/xgemm_{bits}.hpp")
    names = re.search(r'"Xgemm", Precision::\w+, \{([^}]*)\}', database)
    entries = {model or "default": values for _, model, values in _ENTRY.findall(database)}
    if names is None or "default" not in entries:
        raise Failed(f"{checkout}: no parameters for Adreno in the database")
    values = entries.get(gpu, entries["default"])
    numbers = [int(value) for value in values.split(",")]
    params = dict(zip(re.findall(r"\w+", names[1]), numbers, strict=True))
    sources = (_text(checkout / f"src/kernels/{part}.opencl") for part in _CLBLAST_PARTS)
    # Each file is one C++ raw string.
    text = "\n".join(re.sub(r'^(R"\(|\)")\s*$', "", source, flags=re.M) for source in sources)
    options = " ".join(f"-D {name}={value}" for name, value in params.items())
    dtype = f"float{bits}"
    head = f"#define PRECISION {bits}\n{_CLBLAST_HEAD}"
    return Case("Xgemm", "CLBlast", dtype, dtype, head + text, "Xgemm", (params["MDIMC"], params["NDIMC"]), options)


def llama(checkout: Path) -> list[Case]:
    """llama.cpp's kernels that multiply float32 by float32 and float16 by float32 matrices. All sums are float32."""
    folder = checkout / "ggml" if (checkout / "ggml").is_dir() else checkout
    kernels = (("mul_mm_f32_f32_l4_lm", "kernel_", "float32", (128, 1)),
               ("mul_mm_f16_f32_l4_lm", "kernel_", "float16", (128, 1)),
               ("mul_mat_f16_f32", "", "float16", (16, 8)))  # fmt: skip
    return [
        Case(name, "llama.cpp", dtype, "float32", _text(folder / f"src/ggml-opencl/kernels/{name}.cl"), prefix + name,
             group, "")
        for name, prefix, dtype, group in kernels
    ]  # fmt: skip

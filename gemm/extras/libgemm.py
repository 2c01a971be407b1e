"""Where the package keeps libgemm, the CPU engine for programs in C: docs/c-api.md."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1]


def get_include() -> str:
    """The folder of `gemm_cblas.h`, for a C compiler's -I."""
    return str(_FOLDER / "include")


def get_library() -> str:
    """The path of the shared library libgemm, for a C compiler or a loader.

    Raises FileNotFoundError where the package was built without it.
    """
    library = _FOLDER / "lib" / "libgemm.so"
    if not library.is_file():
        raise FileNotFoundError(f"{library} is not there: build it with `python build.py` in a checkout of gemm")
    return str(library)


def compiler_words() -> str:
    """What a C compiler takes to compile and link a program with libgemm, which then finds it where it lies now."""
    import shlex

    folder = str(Path(get_library()).parent)
    return shlex.join([f"-I{get_include()}", f"-L{folder}", f"-Wl,-rpath,{folder}", "-lgemm"])

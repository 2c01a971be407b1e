"""The paths of libgemm, the CPU engine for C programs, inside the package. See docs/c-api.md."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1]


def get_include() -> str:
    """The folder of `gemm_cblas.h`, for the option -I of a C compiler."""
    return str(_FOLDER / "include")


def get_library() -> str:
    """The path of the shared library libgemm, for a C compiler or a loader.

    Raises FileNotFoundError if the package was built without libgemm.
    """
    library = _FOLDER / "lib" / "libgemm.so"
    if not library.is_file():
        raise FileNotFoundError(f"{library} is not there: build it with `python build.py` in a checkout of gemm")
    return str(library)


def compiler_words() -> str:
    """The options of a C compiler that compile and link a program with libgemm.

    The options include the library's present folder as run path, where the program finds libgemm when it starts.
    """
    import shlex

    folder = str(Path(get_library()).parent)
    return shlex.join([f"-I{get_include()}", f"-L{folder}", f"-Wl,-rpath,{folder}", "-lgemm"])

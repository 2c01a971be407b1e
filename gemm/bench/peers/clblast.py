"""CLBlast through its C interface, with the parameters of its database or those found by CLBlast's own tuners."""

from __future__ import annotations

import ctypes
import json
import re
from pathlib import Path
from typing import Any

from .base import Absent

_ROW_MAJOR, _NO = 101, 111
_TYPES = {"float32": ("S", ctypes.c_float, 32), "float64": ("D", ctypes.c_double, 64)}


class CLBlast:
    """CLBlast's GEMM on one queue.

    Args:
        library: path or name of libclblast.
        device, queue: the pyopencl objects.
        tuned: a folder of clblast_*.json files from clblast_tuner_*, whose best parameters replace those of the
            database; or None.

    Raises:
        Absent: the library is missing.
    """

    def __init__(self, library: str, device: Any, queue: Any, tuned: Path | None = None) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise Absent(f"{library}: {error}") from None
        self._queue = ctypes.c_void_p(queue.int_ptr)
        self.parameters: dict[str, dict[str, int]] = {}
        self._library.CLBlastClearCache()  # drop programs that were compiled with other parameters
        best: dict[str, dict[str, Any]] = {}
        for file in sorted(tuned.glob("clblast_*.json")) if tuned else ():
            tuning = json.loads(file.read_text())
            # The tuner files "xgemm_11" and "xgemm_direct_2" belong to the kernel families Xgemm and XgemmDirect.
            family = re.sub(r"_\d+$", "", tuning["kernel_family"]).title().replace("_", "")
            if family not in best or float(tuning["best_time"]) < float(best[family]["best_time"]):
                best[family] = tuning
        for family, tuning in best.items():
            self._override(device, family, tuning)

    def _override(self, device: Any, family: str, tuning: dict[str, Any]) -> None:
        """Use the best parameters of a tuner file, such as "KWG=32 MDIMC=8 ..."."""
        pairs = re.findall(r"(\w+)=(\d+)", tuning["best_parameters"])
        values = {name: int(value) for name, value in pairs if name != "PRECISION"}
        names = (ctypes.c_char_p * len(values))(*(name.encode() for name in values))
        numbers = (ctypes.c_size_t * len(values))(*values.values())
        status = self._library.CLBlastOverrideParameters(
            ctypes.c_void_p(device.int_ptr), family.encode(), int(tuning["precision"]), ctypes.c_size_t(len(values)),
            names, numbers,
        )  # fmt: skip
        if status:
            raise ValueError(f"CLBlast does not take the parameters of {family}: status {status}")
        self.parameters[family] = values

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        """Enqueue out = a · b for row-major pyopencl Arrays. Raises RuntimeError with CLBlast's status."""
        letter, scalar, _ = _TYPES[a.dtype.name]
        (m, k), n = a.shape, b.shape[1]
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        none, one = scalar(0.0), scalar(1.0)
        left, right, result = (
            (pointer(x.base_data.int_ptr), size(0), size(x.shape[1])) for x in (a, b, out)
        )  # fmt: skip
        status = getattr(self._library, f"CLBlast{letter}gemm")(
            _ROW_MAJOR, _NO, _NO, size(m), size(n), size(k), one, *left, *right, none, *result,
            ctypes.byref(self._queue), None,
        )  # fmt: skip
        if status:
            raise RuntimeError(f"CLBlast{letter}gemm: status {status}")

"""Kernel sources as text, and the one disk cache that compiled kernels and measurements share.

The cache folder is private (0700, owned by this user, no link itself; the folders above it belong to this user or root,
and nobody else may replace what is in them): a file that others could have written is never loaded. Entries are plain
files, carry a checksum and the package version and are replaced atomically, so that a torn, foreign or outdated one
reads as absent.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import BinaryIO

from gemm.catalog import KERNELS, Kernel
from gemm.core.errors import link
from gemm.core.version import VERSION

log = logging.getLogger("gemm")

_HERE = Path(__file__).resolve().parents[1]
_ROOT = _HERE / "_sources" if (_HERE / "_sources").is_dir() else _HERE.parent
_MAGIC = b"gemm1\n"
_INCLUDE = re.compile(r'^#include "(\w+\.(?:cl|cu)h)"$', re.MULTILINE)
TREES = "csrc/cuda", "kernels/opencl"
"""What is compiled at run time."""


@cache
def read(source: Kernel | str) -> str:
    """The text of a kernel's source file (or of one by its path in the tree), from the wheel or the checkout.

    The header that an OpenCL source includes, from the folder above its own, is in its place: drivers read no files.
    """
    path = source if isinstance(source, str) else source.source
    text = (_ROOT / path).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda line: headers(path)[line[1]], text) if path.endswith(".cl") else text


@cache
def headers(source: str) -> dict[str, str]:
    """The headers that a source file includes, and those that they include: {name: text}."""
    folder = source.rsplit("/", 2 if source.endswith(".cl") else 1)[0]
    found: dict[str, str] = {}

    def gather(text: str) -> None:
        for name in _INCLUDE.findall(text):
            if name not in found:
                found[name] = read(f"{folder}/{name}")
                gather(found[name])

    gather((_ROOT / source).read_text(encoding="utf-8"))
    return found


def compiled(source: str) -> list[str]:
    """The texts that a product by a kernel of this file depends on.

    They are the file itself, its headers, and, of its tree, the sources of no row, which launches of all rows may use.
    """
    rows = {row.source for row in KERNELS}
    tree = next((tree for tree in TREES if source.startswith(f"{tree}/")), None)
    others = [path for path in _files(tree) if path.endswith((".cl", ".cu")) and path not in rows] if tree else []
    return [text for path in (source, *others) for text in (read(path), *headers(path).values())]


def _files(tree: str) -> dict[str, os.stat_result]:
    """The files of a tree by their paths, sorted. (Path.rglob takes several times as long.)"""
    found: dict[str, os.stat_result] = {}
    folders = [tree]
    while folders:
        folder = folders.pop()
        with os.scandir(_ROOT / folder) as there:
            for each in there:
                path = f"{folder}/{each.name}"
                if each.is_dir():
                    folders.append(path)
                elif path.endswith((".cl", ".clh", ".cu", ".cuh")):
                    found[path] = each.stat()
    return dict(sorted(found.items()))


@cache
def state() -> str:
    """A fingerprint of all sources that are compiled at run time: their sizes and times, for reading takes longer."""
    found = [(path, status.st_size, status.st_mtime_ns) for tree in TREES for path, status in _files(tree).items()]
    return digest(repr(found).encode()).hex()[:32]


def _usual_folder() -> str:
    """The platform's folder for caches, and gemm's in it.

    On Linux as platformdirs has it, but without that: importing it takes longer than a process's first small product.
    """
    if sys.platform == "linux" and "ANDROID_DATA" not in os.environ:
        return os.path.join(os.environ.get("XDG_CACHE_HOME", "").strip() or os.path.expanduser("~/.cache"), "gemm")
    import platformdirs

    return platformdirs.user_cache_dir("gemm", appauthor=False)


@lru_cache(maxsize=1)
def cache_dir() -> Path | None:
    """The private cache folder, made on first use: $GEMM_CACHE_DIR or the platform's; None if unsafe or unwritable."""
    folder = chosen_folder()
    refused = refusal(folder)
    if refused is not None:
        log.warning("gemm runs without a disk cache: %s (%s; %s)", *refused, link("cache"))
        return None
    return folder


def chosen_folder() -> Path:
    """$GEMM_CACHE_DIR, or the platform's folder for caches and gemm's in it."""
    return Path(os.path.expanduser(os.environ.get("GEMM_CACHE_DIR", "").strip() or _usual_folder()))


def refusal(folder: Path) -> tuple[str, str] | None:
    """Why `folder` cannot be the cache and what helps, or None; makes it where it is not there."""
    elsewhere = "set GEMM_CACHE_DIR to a folder of yours"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.lstat()
    except OSError as error:
        return str(error), elsewhere
    if os.name == "posix":
        if not stat.S_ISDIR(facts.st_mode):
            return f"{folder} is a link", elsewhere
        if facts.st_uid != os.geteuid():
            return f"{folder} belongs to another user", elsewhere
        if facts.st_mode & 0o022:
            return f"others may write to {folder}", f"chmod 700 {folder}"
        if unsafe := _replaceable(folder):
            return f"others may replace {unsafe}, above {folder}", elsewhere
    if not os.access(folder, os.W_OK):
        return f"{folder} is read-only", elsewhere
    return None


def _replaceable(folder: Path) -> Path | None:
    """A folder on the way to `folder` in which somebody but this user and root may put another in its place, or None.

    Both the way as it is written, whose links can be bent, and the one that it leads to.
    """
    trusted = 0, os.stat("/").st_uid, os.geteuid()  # in a container root may have another number
    for parent in sorted({*Path(os.path.abspath(folder)).parents, *folder.resolve().parents}):
        facts = parent.stat()
        writers = 0o002 if facts.st_gid == facts.st_uid else 0o022  # a user's own group has no other members
        sticky = facts.st_mode & stat.S_ISVTX  # as /tmp: everybody replaces only what is his own
        if facts.st_uid not in trusted or (facts.st_mode & writers and not sticky):
            return parent
    return None


def _plain(path: Path) -> bytes:
    """The bytes of a plain file: what is none, as a FIFO, is not waited for. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is no plain file")
        return file.read()


def digest(data: bytes) -> bytes:
    """SHA-256."""
    return hashlib.sha256(data).digest()


def _seal(data: bytes) -> bytes:
    return digest(VERSION.encode() + b"\0" + data)


def load(name: str) -> bytes | None:
    """The cache entry `name` (a plain file name), or None when absent, torn or from another version."""
    folder = cache_dir()
    if folder is None:
        return None
    try:
        blob = _plain(folder / name)
    except OSError:
        return None
    data = _opened(blob)
    if data is None:
        log.warning("gemm ignores the cache entry %s: damaged or of another version", name)
    return data


def _opened(blob: bytes) -> bytes | None:
    seal, data = blob[len(_MAGIC) : len(_MAGIC) + 32], blob[len(_MAGIC) + 32 :]
    return data if blob.startswith(_MAGIC) and seal == _seal(data) else None


def damaged() -> list[Path]:
    """The entries of the cache that `load` ignores."""
    folder = cache_dir()
    found = []
    for file in sorted(folder.iterdir()) if folder else ():
        with suppress(OSError):  # replaced by another process just now
            if file.is_file() and not file.name.startswith(".") and _opened(file.read_bytes()) is None:
                found.append(file)
    return found


def store(name: str, data: bytes) -> None:
    """Write the cache entry `name` atomically; does nothing without a usable folder."""
    folder = cache_dir()
    if folder is None:
        return
    import tempfile

    try:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + _seal(data) + data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, folder / name)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as error:
        log.warning("gemm could not write the cache entry %s: %s", name, error)


def remove(name: str) -> None:
    """Drop the cache entry `name`, if there is one."""
    folder = cache_dir()
    if folder is not None:
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)


def entries(prefix: str) -> list[str]:
    """The names of the cache entries that start with `prefix`, sorted."""
    folder = cache_dir()
    return [] if folder is None else sorted(path.name for path in folder.glob(f"{prefix}*"))


def update(name: str, change: Callable[[bytes | None], bytes]) -> None:
    """Replace the cache entry `name` by change(its data or None); processes that do so take turns."""
    folder = cache_dir()
    if folder is None:
        return
    try:
        with _turn(folder / f".lock-{name}"):
            store(name, change(load(name)))
    except OSError as error:
        log.warning("gemm could not update the cache entry %s: %s", name, error)


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`. Where it cannot be locked, on some network drives, go on without."""
    with path.open("ab") as file:
        try:
            if os.name == "nt":
                import msvcrt

                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined,unused-ignore]
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            log.warning("gemm could not lock %s: %s", path, error)
        try:
            yield
        finally:
            _release(file)


def _release(file: BinaryIO) -> None:
    """Unlock a file. To close it is not enough: the child of a fork may have it open, too."""
    if os.name == "posix":
        import fcntl

        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)

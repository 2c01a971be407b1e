"""Kernel sources as text, and the disk cache that compiled kernels and measurements share.

The cache never loads a file that another user could have written. The cache folder is therefore private: mode 0700,
owned by this user, and not a link. All folders above it belong to this user or root, and nobody else may replace
entries in them. Cache entries are plain files, and they are replaced atomically. Each entry contains a checksum of the
package version and of the entry's data. An entry with a wrong checksum is treated as absent: it is partly written, not
from gemm, or of another version.
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
from gemm.core import VERSION
from gemm.core.errors import link

log = logging.getLogger("gemm")

_HERE = Path(__file__).resolve().parents[1]
_ROOT = _HERE / "_sources" if (_HERE / "_sources").is_dir() else _HERE.parent
_MAGIC = b"gemm1\n"
_INCLUDE = re.compile(r'^#include "(\w+\.(?:cl|cu)h)"$', re.MULTILINE)
TREES = "csrc/cuda", "kernels/opencl"
"""The source trees that are compiled at run time."""


@cache
def read(source: Kernel | str) -> str:
    """The text of a kernel's source file, from the wheel or the checkout. `source` is a kernel or the path of a file in
    the tree.

    In an OpenCL source, the #include line is replaced by the text of the header from the parent folder, because OpenCL
    drivers cannot read files.
    """
    path = source if isinstance(source, str) else source.source
    text = (_ROOT / path).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda line: headers(path)[line[1]], text) if path.endswith(".cl") else text


@cache
def headers(source: str) -> dict[str, str]:
    """The headers that a source file includes directly or indirectly: {name: text}."""
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
    """The texts of all sources on which the products of the kernels in the file `source` depend.

    The sources are the file itself, its headers, and all files of its tree that are not the source of a kernel in the
    catalog, because launches of every kernel may use these files, too.
    """
    rows = {row.source for row in KERNELS}
    tree = next((tree for tree in TREES if source.startswith(f"{tree}/")), None)
    others = [path for path in _files(tree) if path.endswith((".cl", ".cu")) and path not in rows] if tree else []
    return [text for path in (source, *others) for text in (read(path), *headers(path).values())]


def _files(tree: str) -> dict[str, os.stat_result]:
    """{path: status} of the sources and headers of a tree, sorted by path. (Path.rglob takes several times as long.)"""
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
    """A fingerprint of the sources that are compiled at run time.

    The fingerprint covers the paths, sizes and modification times of the files. Reading the contents would take longer.
    """
    found = [(path, status.st_size, status.st_mtime_ns) for tree in TREES for path, status in _files(tree).items()]
    return digest(repr(found).encode()).hex()[:32]


def _usual_folder() -> str:
    """gemm's folder in the platform's folder for caches.

    On Linux this function computes the same folder as platformdirs without importing platformdirs: the import takes
    longer than the first small product of a process.
    """
    if sys.platform == "linux" and "ANDROID_DATA" not in os.environ:
        return os.path.join(os.environ.get("XDG_CACHE_HOME", "").strip() or os.path.expanduser("~/.cache"), "gemm")
    import platformdirs

    return platformdirs.user_cache_dir("gemm", appauthor=False)


@lru_cache(1)
def cache_dir() -> Path | None:
    """The private cache folder, created on first use; None if it is unsafe or cannot be written."""
    folder = chosen_folder()
    refused = refusal(folder)
    if refused is not None:
        log.warning("gemm runs without a disk cache: %s (%s; %s)", *refused, link("cache"))
        return None
    return folder


def chosen_folder() -> Path:
    """$GEMM_CACHE_DIR, or gemm's folder in the platform's folder for caches."""
    return Path(os.path.expanduser(os.environ.get("GEMM_CACHE_DIR", "").strip() or _usual_folder()))


def refusal(folder: Path) -> tuple[str, str] | None:
    """Create `folder` if needed. Return None if `folder` can be the cache, else (the cause, the remedy)."""
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
    """A folder above `folder` in which somebody except this user and root may replace entries; None: no such folder.

    Checks the folders of the path as written, because somebody could replace a link there, and also the folders of the
    path to which the links lead.
    """
    trusted = 0, os.stat("/").st_uid, os.geteuid()  # in a container, root may have another user id
    for parent in sorted({*Path(os.path.abspath(folder)).parents, *folder.resolve().parents}):
        facts = parent.stat()
        # A group whose id equals the owner's user id is the owner's private group: it has no other members.
        writers = 0o002 if facts.st_gid == facts.st_uid else 0o022
        sticky = facts.st_mode & stat.S_ISVTX  # like /tmp: everybody may replace only their own entries
        if facts.st_uid not in trusted or (facts.st_mode & writers and not sticky):
            return parent
    return None


def _plain(path: Path) -> bytes:
    """The bytes of a plain file. Does not block on other kinds of files, such as a FIFO. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is not a regular file")
        return file.read()


def digest(data: bytes) -> bytes:
    """The SHA-256 hash of `data`, 32 bytes."""
    return hashlib.sha256(data).digest()


def _seal(data: bytes) -> bytes:
    return digest(VERSION.encode() + b"\0" + data)


def load(name: str) -> bytes | None:
    """The data of cache entry `name` (a plain file name); None if it is absent, damaged or of another version."""
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
    """The files of the cache entries that `load` ignores because they are damaged or of another version."""
    folder = cache_dir()
    found = []
    for file in sorted(folder.iterdir()) if folder else ():
        with suppress(OSError):  # another process has just replaced the file
            if file.is_file() and not file.name.startswith(".") and _opened(file.read_bytes()) is None:
                found.append(file)
    return found


def store(name: str, data: bytes) -> None:
    """Write the cache entry `name` atomically. Does nothing if there is no usable cache folder."""
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
    """Delete the cache entry `name` if it exists."""
    folder = cache_dir()
    if folder is not None:
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)


def entries(prefix: str) -> list[str]:
    """The names of the cache entries that start with `prefix`, sorted."""
    folder = cache_dir()
    return [] if folder is None else sorted(path.name for path in folder.glob(f"{prefix}*"))


def update(name: str, change: Callable[[bytes | None], bytes]) -> None:
    """Replace the data of the cache entry `name` by change(data). A lock file excludes concurrent updates.

    change: gets the present data, or None if there is no valid entry.
    """
    folder = cache_dir()
    if folder is None:
        return
    try:
        with _locked(folder / f".lock-{name}"):
            store(name, change(load(name)))
    except OSError as error:
        log.warning("gemm could not update the cache entry %s: %s", name, error)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the file at `path` during the block. If this fails, as on some network drives, continue without a lock."""
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
    """Unlock a file. Closing the file is not enough, because a forked child may still have it open."""
    if os.name == "posix":
        import fcntl

        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)

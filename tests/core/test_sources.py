"""The disk cache: atomic, checksummed, private; and the kernel sources that travel with the package."""

import logging
import os
import sys
from itertools import pairwise
from pathlib import Path

import platformdirs
import pytest

from gemm.catalog import KERNELS
from gemm.core import disk_cache


def test_round_trip(cache_folder):
    assert disk_cache.load("entry") is None
    disk_cache.store("entry", b"\x00data")
    assert disk_cache.load("entry") == b"\x00data"
    assert cache_folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in cache_folder.iterdir()] == ["entry"]  # no temporary file is left


@pytest.mark.parametrize("harm", ["truncate", "flip", "empty", "foreign"])
def test_damaged_entries_read_as_absent(cache_folder, harm, caplog):
    disk_cache.store("entry", b"0123456789")
    path = cache_folder / "entry"
    blob = path.read_bytes()
    path.write_bytes(
        {
            "truncate": blob[:-1],
            "flip": blob[:-1] + bytes([blob[-1] ^ 1]),
            "empty": b"",
            "foreign": b"\x80\x04N.",
        }[harm]
    )
    with caplog.at_level(logging.WARNING, "gemm"):
        assert disk_cache.load("entry") is None
    assert "damaged" in caplog.text


def test_entries_of_another_version_read_as_absent(cache_folder, monkeypatch):
    disk_cache.store("entry", b"old")
    monkeypatch.setattr(disk_cache, "VERSION", "999")
    assert disk_cache.load("entry") is None


def test_writers_at_once_do_not_mix(cache_folder, monkeypatch, caplog):
    """Another process writes the entry while this one is about to; nothing that is half written is ever seen."""
    fsync = os.fsync

    def interrupted(handle):
        monkeypatch.setattr(os, "fsync", fsync)
        assert disk_cache.load("entry") is None
        disk_cache.store("entry", b"the other's")
        assert disk_cache.load("entry") == b"the other's"
        fsync(handle)

    monkeypatch.setattr(os, "fsync", interrupted)
    disk_cache.store("entry", b"one's own")
    assert disk_cache.load("entry") == b"one's own"
    assert [file.name for file in cache_folder.iterdir()] == ["entry"]
    assert not caplog.records


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_a_folder_that_others_may_write_is_not_used(cache_folder, mode, caplog):
    cache_folder.mkdir()
    (cache_folder / "entry").write_bytes(b"planted")
    cache_folder.chmod(mode)
    with caplog.at_level(logging.WARNING, "gemm"):
        assert disk_cache.load("entry") is None
        disk_cache.store("other", b"x")
    assert not (cache_folder / "other").exists()
    assert "others may write" in caplog.text


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_a_folder_of_another_user_is_not_used(cache_folder, monkeypatch, caplog):
    cache_folder.mkdir(mode=0o700)
    owner = cache_folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with caplog.at_level(logging.WARNING, "gemm"):
        disk_cache.store("entry", b"x")
        assert disk_cache.load("entry") is None
    assert not list(cache_folder.iterdir())
    assert "another user" in caplog.text


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750])
def test_a_folder_that_others_may_read_is_used(cache_folder, mode):
    cache_folder.mkdir()
    cache_folder.chmod(mode)
    disk_cache.store("entry", b"x")
    assert disk_cache.load("entry") == b"x"


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
@pytest.mark.parametrize(("mode", "safe"), [(0o777, False), (0o1777, True), (0o755, True), (0o757, False)])
@pytest.mark.parametrize("link", [False, True])
def test_a_folder_that_others_may_replace_is_not_used(tmp_path, monkeypatch, mode, safe, link):
    """They write to a folder above it, as it is written or where a link leads."""
    above = tmp_path / "above"
    (above / "mine").mkdir(parents=True, mode=0o700)
    above.chmod(mode)
    if link:
        (tmp_path / "link").symlink_to(above)
    monkeypatch.setenv("GEMM_CACHE_DIR", str((tmp_path / "link" if link else above) / "mine" / "cache"))
    disk_cache.cache_dir.cache_clear()
    try:
        assert (disk_cache.cache_dir() is not None) == safe
    finally:
        disk_cache.cache_dir.cache_clear()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX only")
def test_an_entry_that_is_no_plain_file_is_not_waited_for(cache_folder):
    cache_folder.mkdir(mode=0o700)
    os.mkfifo(cache_folder / "entry")
    (cache_folder / "other").mkdir()
    assert disk_cache.load("entry") is None
    assert disk_cache.load("other") is None
    assert disk_cache.damaged() == []


@pytest.mark.skipif(sys.platform != "linux", reason="a FIFO is opened for reading and writing on Linux")
def test_what_comes_out_of_a_fifo_is_no_entry(cache_folder):
    """Whole as it may be: it can be another one each time that it is read."""
    disk_cache.store("entry", b"data")
    whole = (cache_folder / "entry").read_bytes()
    os.mkfifo(cache_folder / "other")
    with open(cache_folder / "other", "r+b", buffering=0) as fifo:
        fifo.write(whole)
        handle = os.open(cache_folder / "other", os.O_RDONLY | os.O_NONBLOCK)
        with pytest.raises(OSError, match="not a regular file"):
            disk_cache._plain(cache_folder / "other")
        assert disk_cache.load("other") is None
        assert os.read(handle, len(whole)) == whole  # nothing was taken out
        os.close(handle)
    assert disk_cache.load("entry") == b"data"


def test_a_folder_below_home(monkeypatch):
    monkeypatch.setenv("GEMM_CACHE_DIR", "~/x")
    assert disk_cache.chosen_folder() == Path.home() / "x"
    monkeypatch.setenv("GEMM_CACHE_DIR", " ")
    assert disk_cache.chosen_folder() == Path(disk_cache._usual_folder())


@pytest.mark.skipif(os.name != "posix", reason="POSIX links")
def test_a_link_is_not_used(cache_folder, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    cache_folder.symlink_to(tmp_path / "elsewhere")
    assert disk_cache.cache_dir() is None


def test_an_impossible_folder_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    disk_cache.cache_dir.cache_clear()
    try:
        assert disk_cache.load("entry") is None
        disk_cache.store("entry", b"x")
    finally:
        disk_cache.cache_dir.cache_clear()


@pytest.mark.parametrize("row", [r for r in KERNELS if r.backend in ("opencl", "cuda")], ids=lambda r: r.name)
def test_run_time_compiled_sources_are_found(row):
    assert row.entry in disk_cache.read(row)


@pytest.mark.parametrize("row", KERNELS, ids=lambda r: r.name)
def test_catalog_files_and_names_agree(row):
    """File stem = entry point, which begins the row's name, up to the type letter that a shared source generalises.

    A row that checks its operands first is in the file of the kernel that it then calls.
    """
    root = Path(__file__).resolve().parents[2]
    assert (root / row.source).is_file()
    stem = Path(row.source).stem
    name = row.name.replace("_checked_", "_")
    whole = {name, "gemm" + name.partition("gemm")[2]}
    families = (name.startswith(f"{stem}_") for name in whole)
    assert stem in whole or (row.backend in ("opencl", "cuda") and any(families)) or row.backend == "numpy"
    if row.backend != "numpy":
        assert row.name.split("_")[1] == row.target


COMPILED = sorted({r.source for r in KERNELS if r.backend in ("opencl", "cuda")})


@pytest.mark.parametrize("source", COMPILED)
def test_catalog_parameters_and_ifndef_defaults_agree(source):
    """Each parameter of a row has a default in its file, and the defaults are those of one row."""
    lines = disk_cache.read(source).splitlines()
    defaults = {}
    for guard, define in pairwise(lines):
        if guard.startswith("#ifndef "):
            name = guard.split()[1]
            words = define.split()
            assert words[:2] == ["#define", name], f"{source}: no default after {guard}"
            defaults[name] = words[2] if len(words) > 2 else ""
    rows = [
        {name: str(value) for name, value in r.params.items() if name.isupper()} for r in KERNELS if r.source == source
    ]
    for params in rows:
        assert params.keys() <= defaults.keys()
    assert any(params.items() <= defaults.items() for params in rows)


@pytest.mark.parametrize("chosen", [None, "", "  ", "/elsewhere/caches"])
def test_the_usual_folder_is_that_of_platformdirs(monkeypatch, chosen):
    """Also where sources does without it, lest the first product of a process waits for its import."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if chosen is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", chosen)
    assert disk_cache._usual_folder() == platformdirs.user_cache_dir("gemm", appauthor=False)

"""Unpack Debian packages into a folder. Nothing is installed, and no script of a package runs."""

from __future__ import annotations

import os
from pathlib import Path

from .tools import run


def unpack(names: tuple[str, ...], architecture: str, folder: Path) -> Path:
    """Download packages from the host's Debian sources, unpack them, and return the root folder of their files.

    The root folder is in `folder`. If it exists already, nothing is downloaded.
    """
    root = folder / f"{architecture}-{'-'.join(names)}"
    if root.exists():
        return root
    apt, new = folder / f"apt-{architecture}", folder / f"new-{os.getpid()}"
    for part in ("state/lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    (apt / "apt.conf").write_text(
        f'APT::Architecture "{architecture}"; APT::Architectures {{"{architecture}";}}; APT::Sandbox::User "root";\n'
        f'Dir::State "{apt}/state"; Dir::State::status "/dev/null"; Dir::Cache "{apt}/cache";\n'
    )
    environment = {"APT_CONFIG": str(apt / "apt.conf")}
    run(["apt-get", "update", "-qq"], environment=environment)
    new.mkdir(parents=True)
    run(["apt-get", "download", "-qq", *names], cwd=new, environment=environment)
    for package in sorted(new.glob("*.deb")):
        run(["dpkg", "-x", package, new / "root"])
    (new / "root").rename(root)
    return root

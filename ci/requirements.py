"""Print requirements of pyproject.toml, one per line, so that CI needs no list of its own.

    requirements.py [EXTRA[,EXTRA...] [NAME...]]

The requirements are the package's dependencies and those of the EXTRAs ("-" for none). With NAMEs, only the
requirements of these names are printed. An unknown name is an error.
"""

import re
import sys
from pathlib import Path

import tomllib


def requirements(extras: list[str]) -> dict[str, str]:
    """{distribution name: requirement}. References of gemm to its own extras are resolved."""
    project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())["project"]
    found: dict[str, str] = {}
    queue = [*project["dependencies"]]
    for extra in extras:
        queue += project["optional-dependencies"][extra]
    for line in queue:  # the loop appends to the queue
        name = re.split(r"[^\w.-]", line, maxsplit=1)[0].lower()
        if name == project["name"]:
            for extra in re.findall(r"[\w-]+", line.partition("[")[2].partition("]")[0]):
                queue += project["optional-dependencies"][extra]
        else:
            found.setdefault(name, line)
    return found


def main(argv: list[str]) -> int:
    extras = [] if argv[:1] in ([], ["-"]) else argv[0].split(",")
    found = requirements(extras)
    names = argv[1:] or list(found)
    if missing := [name for name in names if name not in found]:
        print(f"pyproject.toml has no requirement named {', '.join(missing)}", file=sys.stderr)
        return 1
    print("\n".join(found[name] for name in names))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

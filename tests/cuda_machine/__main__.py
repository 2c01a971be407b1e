"""Prints the variables of an emulated GPU for a shell: python -m tests.cuda_machine [CAPABILITY] [NAME=VALUE ...]"""

import shlex
import sys

from . import environment

capability = next((word for word in sys.argv[1:] if "=" not in word), "9.0")
settings = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
for name, value in environment(capability, **settings).items():
    print(f"export {name}={shlex.quote(value)}")

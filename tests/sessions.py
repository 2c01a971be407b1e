"""The Python sessions of Markdown pages, run as doctests."""

import doctest
import re

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def session(page):
    """Its Python blocks, those with prompts, as one."""
    return "\n".join(block for block in BLOCK.findall(page.read_text(encoding="utf-8")) if block.startswith(">>> "))


def run(text, name):
    """How many examples ran; fails if one prints anything else than what it shows."""
    test = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    result = doctest.DocTestRunner().run(test)
    assert not result.failed, f"{result.failed} of {result.attempted} examples of {name} failed; see the output"
    return result.attempted

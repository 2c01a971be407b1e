"""Many arrays read one after another, by what they tell of themselves; and whether their products are independent."""

from pathlib import Path

import numpy as np
import pytest

from gemm.backends.cuda import pointer_table
from gemm.backends.cuda.array_metadata import Library
from gemm.backends.cuda.pinned import Slot

native = pytest.importorskip("gemm._memo")
COUNT = 300
ROOT = Path(__file__).parents[3]


class Array:
    """`asked`: how often one was asked for its shape."""

    asked = 0

    def __init__(self, address, shape=(4, 6), device=0):
        self._shape, self.address, self.device = shape, address, device

    @property
    def shape(self):
        Array.asked += 1
        if self._shape == ():
            raise RuntimeError("it was deleted")
        return self._shape


class Arrays(Library):
    """Reads such arrays."""

    def facts(self, x):
        return x.shape, x.device

    def address(self, x):
        return int(x.address)


LIBRARY = Arrays()


def places(count=COUNT):
    return np.zeros((count, 4), np.uint64)


def column(base):
    return [Array(base + 0x100 * i) for i in range(COUNT)]


def read(to, *columns, start=0, count=None):
    return pointer_table.read(LIBRARY, columns, start, len(to) if count is None else count, to.ctypes.data)


def test_all_that_are_alike():
    a, b, c, out = (column(base) for base in (1 << 20, 1 << 21, 1 << 22, 1 << 23))
    to = places()
    assert read(to, a, tuple(b), c, out) == (COUNT, tuple((1 << bit) | 0x1FF00 for bit in (20, 21, 22, 23)))
    assert to[:, 3].tolist() == [(1 << 23) + 0x100 * i for i in range(COUNT)]
    assert to[7].tolist() == [(1 << bit) + 0x700 for bit in (20, 21, 22, 23)]
    to = places()
    assert read(to, a, b[3], None, out, start=200, count=100)[0] == 100
    assert to[5].tolist() == [(1 << 20) + 0x100 * 205, (1 << 21) + 0x300, 0, (1 << 23) + 0x100 * 205]
    assert not to[100:].any()


OTHERS = [
    Array(0, (4, 7)),
    Array(0, device=1),
    Array(0, ()),
    Array("no address"),
    type("Other", (Array,), {})(0),
    3.0,
    None,
]


@pytest.mark.parametrize("operand", range(4))
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("at", [1, 64, 299])
def test_one_that_is_not(operand, other, at):
    columns = [column(base) for base in (1 << 20, 1 << 21, 1 << 22, 1 << 23)]
    columns[operand][at] = other
    count, bits = read(places(), *columns)
    assert count == at
    assert all(told >> 20 == 1 << place for place, told in enumerate(bits)), "bits of those before it alone"


def test_whether_c_is_out():
    a, b, c, out = (column(base) for base in (1 << 20, 1 << 21, 1 << 22, 1 << 23))
    assert read(places(), a, b, [*out[:100], *c[100:]], out)[0] == 100
    assert read(places(), a, b, [*c[:100], *out[100:]], out)[0] == 100
    assert read(places(), a, b, out, out)[0] == COUNT


def test_a_column_that_ends_or_becomes_shorter():
    """What an array tells may be anybody's code."""
    a, out = column(1 << 20), column(1 << 21)
    assert read(places(), a[:-1], a, None, out)[0] == COUNT - 1
    b = column(1 << 22)

    class Emptying(Array):
        @property
        def shape(self):
            b.clear()
            return super().shape

    assert read(places(), [Emptying(64 * i) for i in range(COUNT)], b, None, out)[0] == 0


def test_one_array_of_all_is_asked_once():
    asked = Array.asked
    assert read(places(), Array(64), Array(128), None, Array(192))[0] == COUNT
    assert Array.asked == asked + 3


def test_no_object_of_another_library_is_read_by_its_layout():
    """They tell by their public protocols: no mangled symbol is looked up, no word of an object is followed."""
    for path in (*(ROOT / "gemm").rglob("*.py"), *(ROOT / "csrc" / "python").glob("*.[ch]")):
        text = path.read_text(encoding="utf-8")
        for sign in ("_ZN", "aoti_torch", "__basicsize__"):
            assert sign not in text, f"{path} has {sign}"


def test_independence():
    slot = Slot(places(pointer_table.MOST + COUNT), 0)  # entries, and workspace behind them
    to = slot.memory[:COUNT]
    to[:, :] = (1 << 20) + 1024 * np.arange(4 * COUNT).reshape(COUNT, 4)
    reach = ((0, 1024),) * 4

    def found(reads_c=True):
        return pointer_table.independent(slot, COUNT, reach, reads_c)

    assert found()
    kept = to[30, 2]
    to[30, 2] = to[200, 3] + 1020
    assert not found()
    assert found(reads_c=False)
    to[30, 2], to[30, 3] = kept, to[31, 3]
    assert not found()
    to[30, 3] = to[30, 0]
    assert not found(), "it overlaps its own operand"
    with pytest.raises(ValueError, match="at once"):
        native.independent(0, 1 << 20, (0,) * 4, (1,) * 4, False, 0, 0)

"""What `import gemm` brings along, beyond NumPy: nothing that takes long to load, and nothing that touches a driver."""

import json

import pytest
from helpers import python

import gemm

# hashlib and json are what a process's first product needs, which is not to wait for them.
STANDARD = {"atexit", "copy", "dataclasses", "encodings", "hashlib", "heapq", "json", "logging", "string", "threading",
            "traceback"}  # fmt: skip
OTHERS = {"_cffi_backend", "numpy", "threadpoolctl"}
LATER = ("gemm.backends.opencl.backend", "gemm.backends.cuda.backend", "gemm.backends.numpy", "gemm.cli",
         "gemm.compare", "gemm.execute.split",
         "gemm.tune", "gemm.bench", "gemm.select.verify")  # fmt: skip
# What finds an editable install brings pathlib and importlib along; the package has them from a wheel, too.
CODE = """
import sys, numpy, importlib.util, pathlib, threading
before = set(sys.modules)
import gemm
print(sorted(set(sys.modules) - before), threading.active_count(), sep="\\n")
"""
FIRST = """
import sys, numpy
x = numpy.ones((8, 8), "f4")
import gemm
before = set(sys.modules)
gemm.gemm(x, x)
print(sorted(set(sys.modules) - before))
"""


@pytest.fixture(scope="module")
def brought():
    """The modules that the import adds to NumPy's, and how many threads there are then."""
    modules, threads = python(CODE).splitlines()
    return set(json.loads(modules.replace("'", '"'))), int(threads)


def test_others_modules(brought):
    names = {name.partition(".")[0] for name in brought[0]}
    accelerators = {name for name in names if name.startswith("_")} - OTHERS  # the C halves of STANDARD
    assert names - accelerators - {"gemm"} <= STANDARD | OTHERS
    assert not accelerators & {"_posixsubprocess", "_socket", "_ssl", "_queue"}


def test_its_own_modules(brought):
    assert "gemm.select.choice" in brought[0]
    assert not [name for name in brought[0] if name.startswith(LATER)]


def test_a_look_at_a_module_that_takes_long_does_not_load_it():
    python("""
import inspect, sys, gemm
for module in (gemm.compare, gemm.dask):
    assert inspect.unwrap(module) is module
    assert repr(module) and dir(module)
assert not {"gemm.compare", "gemm.dask"} & sys.modules.keys()
""")


@pytest.mark.parametrize("path", ["compare.compare", "compare.Comparison", "dask.gemm", "dask.chunks.least_side",
                                  "numpy_api.namespace.matmul", "frontend.inventory.KernelStatus"])  # fmt: skip
def test_documented_paths_work_after_import_gemm_alone(path):
    if path.startswith("dask"):
        pytest.importorskip("dask.array")
    assert python(f"import gemm; print(gemm.{path}.__name__)").strip() == path.rpartition(".")[2]


def test_a_wrong_name_is_no_attribute():
    assert not hasattr(gemm, "comparison")
    assert {name for name in dir(gemm) if not name.startswith("_")} == set(gemm.__all__)


def test_no_thread_starts(brought):
    assert brought[1] == 1


@pytest.mark.skipif(gemm.backends()["cpu"] != "", reason="the engine is not built")
def test_the_first_small_product_loads_nothing_for_children_or_drivers():
    loaded = set(json.loads(python(FIRST).replace("'", '"')))
    late = {"subprocess", "queue", "gemm.backends.cuda.backend", "pyopencl"}
    assert "gemm.backends.cpu" in loaded
    assert not loaded & late


LATE = """
import gemm, numpy

def work():
    x = numpy.ones((8, 8), "f4")
    print(len(gemm.backends()), (gemm.gemm(x, x) == 8).all(), [len(gemm.gemm(x, x, backend=name)) for name in usable])

usable = ("cpu", "numpy")
"""


@pytest.mark.skipif(gemm.backends()["cpu"] != "", reason="the engine is not built")
@pytest.mark.parametrize("end", ["import threading\nthreading.Thread(target=lambda: [time.sleep(0.3), work()]).start()",
                                 "import atexit\natexit.register(work)"], ids=["a thread", "at exit"])  # fmt: skip
def test_backends_are_found_and_products_computed_after_the_main_thread_has_ended(end):
    assert python(LATE + "import time\n" + end).split() == ["4", "True", "[8,", "8]"]

"""A pytest plugin that runs others' tests with their products by gemm: see ci/suites.sh, which has the command lines.

Tests run within `gemm.use(backend="cpu")`. --through says what else of gemm they meet, since that does not reach what
was bound before, or takes a namespace:

    matmul      NumPy's TestMatmul tests gemm.matmul
    contract    opt_einsum contracts NumPy's arrays by backend="gemm"
    namespace   gemm.numpy_api.namespace is array_api_compat's namespace for NumPy

Tests that cannot pass are declared in --xfails=FILE, each with its reason, and must fail: one that passes, or is not
there any more, is an error. So is a run in which fewer tests passed than --at-least, or gemm computed in fewer than
--computed.
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import gemm


def pytest_addoption(parser):
    group = parser.getgroup("by gemm")
    group.addoption("--through", choices=("use", *THROUGH), default="use", help="how the tests reach gemm")
    group.addoption("--xfails", type=Path, metavar="FILE", help="lines `test  # why`; a test is the end of a node id")
    group.addoption("--at-least", type=int, default=1, metavar="COUNT", help="tests that must pass")
    group.addoption("--computed", type=int, default=1, metavar="COUNT", help="tests in which gemm must compute")


def pytest_configure(config):
    config.pluginmanager.register(ByGemm(config), "by gemm")


def declared(file):
    """{end of a node id: why it fails} of an --xfails file; lines that begin with # are for people."""
    found = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file else ():
        if line.strip() and not line.startswith("#"):
            test, _, reason = (part.strip() for part in line.partition("  # "))
            if not reason:
                raise pytest.UsageError(f"{file}: no reason is given for {test}")
            found[test] = reason
    return found


def _matmul(items):
    for cls in {item.cls for item in items if isinstance(item, pytest.Function) and item.cls}:
        if cls.__name__ == "TestMatmul":
            cls.matmul, cls.types = staticmethod(gemm.matmul), cls.types.replace("O", "")


def _contract(items):
    module = sys.modules["opt_einsum.contract"]
    parse = module.parse_backend

    def by_gemm(arrays, backend):
        chosen = parse(arrays, backend)
        return "gemm" if chosen == "numpy" else chosen

    module.parse_backend = by_gemm


def _use(items):
    for cls in {item.cls for item in items if isinstance(item, pytest.Function) and item.cls}:
        if cls.__dict__.get("matmul") is np.matmul:  # bound when the class was made
            cls.matmul = staticmethod(lambda *args, **kwargs: np.matmul(*args, **kwargs))


THROUGH = {
    "matmul": _matmul, "contract": _contract, "namespace": _use,
}  # fmt: skip


class ByGemm:
    """One run: what it computes with, and what came of it."""

    def __init__(self, config):
        self._through = THROUGH.get(config.getoption("--through"), _use)
        self._xfails = declared(config.getoption("--xfails"))
        self._least = {"passed": config.getoption("--at-least"), "computed": config.getoption("--computed")}
        self._products = 0
        self._outcomes = Counter()
        for module in (gemm, sys.modules["gemm.numpy_api.array"], sys.modules["gemm.numpy_api.tensordot"]):
            name = "matmul" if module is gemm else "gemm"
            setattr(module, name, self._counted(getattr(module, name)))
        if config.getoption("--through") == "namespace":  # before the tests are imported, which look it up there
            import array_api_compat

            array_api_compat.numpy = sys.modules["array_api_compat.numpy"] = gemm.array([]).__array_namespace__()

    def _counted(self, function):
        def counted(*args, **kwargs):
            result = function(*args, **kwargs)
            self._products += bool(np.size(args[0]))  # without elements only the options are checked
            return result

        return counted

    def pytest_collection_modifyitems(self, items):
        self._through(items)
        unused = dict(self._xfails)
        for item in items:
            for test in [test for test in self._xfails if item.nodeid.endswith(test)]:
                item.add_marker(pytest.mark.xfail(reason=self._xfails[test], strict=True))
                unused.pop(test, None)
        if unused:
            raise pytest.UsageError(f"--xfails names what is no test: {', '.join(unused)}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self):
        before = self._products
        try:
            with gemm.use(backend="cpu"):
                return (yield)
        finally:
            self._outcomes["computed"] += self._products > before

    def pytest_runtest_logreport(self, report):
        if report.when == "call":
            self._outcomes[report.outcome] += 1

    def pytest_sessionfinish(self, session):
        if session.exitstatus == 0 and any(self._outcomes[what] < count for what, count in self._least.items()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        told = ", ".join(f"{what} {self._outcomes[what]} (at least {count})" for what, count in self._least.items())
        terminalreporter.line(f"tests by gemm: {told}; {self._products} products")

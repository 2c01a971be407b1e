"""PyTorch's tensors in host memory: gradients, torch.compile, and types that NumPy does not have."""

import sys
import warnings

import pytest
from helpers import ROOT
from sessions import BLOCK

import gemm

torch = pytest.importorskip("torch")

CALLS = {
    "gemm": lambda x: gemm.gemm(x, x),
    "matmul": lambda x: gemm.matmul(x, x),
    "tensordot": lambda x: gemm.tensordot(x, x, 1),
    "vecdot": lambda x: gemm.vecdot(x, x),
    "einsum": lambda x: gemm.einsum("ij,jk", x, x),
    "gemm_many": lambda x: gemm.gemm_many([x], [x]),
    "plan": lambda x: gemm.plan(x, x),
    "prepare": gemm.prepare,
    "out": lambda x: gemm.gemm(x.detach(), x.detach(), out=x),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_tensor_that_requires_a_gradient_is_refused(call):
    x = torch.ones(3, 3, requires_grad=True)
    with pytest.raises(TypeError, match=r"requires a gradient.*\.detach\(\).*autograd\.Function: .*use\.md#gradients"):
        CALLS[call](x)
    CALLS[call](x.detach().clone())
    with torch.no_grad():
        assert gemm.gemm(x, x).tolist() == [[3.0] * 3] * 3


def test_the_function_of_the_docs_has_the_right_gradients():
    text = (ROOT / "docs/use.md").read_text(encoding="utf-8")
    names = {}
    exec(next(block for block in BLOCK.findall(text) if "autograd.Function" in block), names)
    product = names["Product"].apply
    a, b = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 4), (4, 2)))
    assert torch.autograd.gradcheck(product, (a, b))
    assert torch.autograd.gradgradcheck(product, (a, b))


@pytest.mark.parametrize("function", [gemm.gemm, gemm.matmul])
def test_torch_compile_calls_gemm_as_it_is(function):
    """The eager backend needs no compiler of C."""
    torch.compiler.reset()
    a, b = torch.ones(3, 4), torch.ones(4, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that PyTorch cannot trace gemm
        compiled = torch.compile(lambda x, y: function(x + 1, y) * 2, backend="eager")
        for _ in range(3):
            assert compiled(a, b).tolist() == [[16.0] * 2] * 3
        with pytest.raises(TypeError, match="requires a gradient"):
            compiled(a.requires_grad_(), b)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_types_of_ml_dtypes_name_it_where_it_is_missing(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    x = torch.ones(3, 3).to(getattr(torch, name))
    with pytest.raises(TypeError, match=f"^a: {name} needs the package ml_dtypes: pip install ml_dtypes$"):
        gemm.gemm(x, x)

# Run test suites of other projects with their products computed by gemm (tests/suites): those of NumPy and opt_einsum,
# and those of the array API. No registry has data-apis' own array-api-tests; the available tests come with
# array-api-compat's sdist and with array-api-strict. Then check the types of a program that calls gemm with mypy and
# pyright.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
conformance_venv
mapfile -t tools < <(requirements dev opt_einsum array-api-strict mypy pyright)
work=$CI_WORK/suites
mkdir -p "$work"
retry "$CI_WORK/uv/bin/pip" download -qq --no-deps --no-binary array-api-compat --dest "$work" array-api-compat
retry uv pip install -q --python "$PYTHON" "${tools[@]}" "$work"/array_api_compat-*.tar.gz
tar -C "$work" -xf "$work"/array_api_compat-*.tar.gz
cd "$work"/array_api_compat-*/

suite() { # NAME PASSED COMPUTED ARGUMENT...: the numbers of tests that must pass, and in which gemm must compute
    say "$1"
    PYTHONPATH=$SOURCE/tests/suites "$PYTHON" -m pytest -q --no-header -W ignore -o addopts= -p no:cacheprovider -p by_gemm \
        --at-least "$2" --computed "$3" "${@:4}" || failed+=("$1")
}

failed=()
tests=numpy._core.tests
# test_huge_vectordot is left out: it takes 17 GB, which a job that runs at the same time may need.
products='(Matmul or Dot or Vdot or Inner or Tensordot or Einsum or matmul or vecdot or vecmat or matvec or test_dot) and not huge'
suite "NumPy, within gemm.use" 500 130 --xfails "$SOURCE/tests/suites/numpy.xfails" -k "$products" --pyargs \
    $tests.test_multiarray $tests.test_numeric $tests.test_einsum $tests.test_ufunc numpy.linalg.tests.test_linalg
suite "NumPy's TestMatmul, gemm.matmul" 50 44 --xfails "$SOURCE/tests/suites/matmul.xfails" --through matmul --pyargs \
    $tests.test_multiarray -k "TestMatmul and not TestMatmulOperator and not TestMatmulInplace"
suite "opt_einsum, backend gemm" 7500 6000 --xfails "$SOURCE/tests/suites/opt_einsum.xfails" --through contract --pyargs \
    opt_einsum
suite "array-api-compat, gemm.numpy_api.namespace" 80 0 --xfails "$SOURCE/tests/suites/array_api_compat.xfails" --through namespace \
    tests -k "numpy and not cupy and not torch and not jax and not dask"
suite "array-api-strict, within gemm.use" 750 2 --pyargs array_api_strict
say "the types of a program that calls gemm"
retry "$PYTHON" -m pyright --version # PyPI's package fetches the program from npm
(cd "$SOURCE" && "$PYTHON" -m pytest -q -rfEs tests/frontend/test_types.py) | tee "$work/types.log" || failed+=("types")
! grep '^SKIPPED' "$work/types.log" || die "all of them can run here"
[[ ${#failed[@]} == 0 ]] || die "failed: ${failed[*]}"

# Test the CUDA rows on an emulated GPU, tests/cuda_machine.
#
# 1. The conformance suite on compute capability 9.0, with all rows: one row of each source has all thin checks; all
#    other rows have the checks that find wrong tiles and strides. On 5.3, of the rows that any GPU can run, one of each
#    source, one of each type of results and one with 8-bit operands: there, the parts of a split k are combined through
#    memory.
# 2. One check of a row of each source, with a search for races. Rows with large tiles take too long for this search and
#    are skipped; tests/backends/cuda/test_cuda_races.py tests small tiles instead.
# 3. Batched products of device arrays.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install g++
conformance_venv
cd "$SOURCE"

emulated() { # NAME CAPABILITY CONDITION ARGUMENT...: on the rows that fulfil the condition
    (
        eval "$("$PYTHON" -m tests.cuda_machine "$2")"
        conformance "$1" "row.backend == 'cuda' and ($3)" --thin --timeout 300 "${@:4}"
    )
}

emulated cuda-machine 9.0 True --siblings tile_edges,layouts,chain_layouts
anywhere="(old := [each for each in rows if each.backend == 'cuda' and not any(need[:3] == 'sm_' for need in each.needs)])"
first="old.index(row) in ([each.source for each in old].index(row.source), [each.dtype for each in old].index(row.dtype))"
emulated cuda-machine-53 5.3 "$anywhere and row in old and ($first or row.name == 'e4m3e5m2bgemm_cuda_tile')"
(
    eval "$("$PYTHON" -m tests.cuda_machine 9.0 races=1)"
    export GEMM_CACHE_DIR=$CI_WORK/cuda-machine-races # kernels are compiled differently for the search for races
    "$PYTHON" -m pytest tests/conformance -q --thin -k "cuda and tile_edges and not wgmma and not kmajor" --timeout 600
)
"$PYTHON" -m pytest tests/extras/test_batching_resident.py --cuda-machine 9.0 -q --timeout 300

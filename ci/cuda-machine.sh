# The conformance suite over the CUDA rows on an emulated GPU, tests/cuda_machine: of compute capability 9.0 for all, of 5.3
# for those of any GPU, whose parts of k are then joined through memory. One row a source has every thin check, and each
# row those that find wrong tiles and strides. Then one check of a row of each source with the search for races, but for
# those whose large tiles take too long so (tests/test_cuda_races.py has small ones), and products of device arrays that wait.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install g++
conformance_venv
cd "$SOURCE"
export CUDA_MACHINE_BUILD=$CI_WORK/cuda-machine

emulated() { # NAME CAPABILITY CONDITION: on `row`
    (
        eval "$("$PYTHON" -m tests.cuda_machine "$2")"
        conformance "$1" "row.backend == 'cuda' and ($3)" -n 2 --thin --timeout 300 \
            --siblings tile_edges,layouts,chain_layouts
    )
}

emulated cuda-machine 9.0 True
emulated cuda-machine-53 5.3 "not any(need.startswith('sm_') for need in row.needs)"
(
    eval "$("$PYTHON" -m tests.cuda_machine 9.0 races=1)"
    export GEMM_CACHE_DIR=$CI_WORK/cuda-machine-races # of kernels that are compiled to be watched
    "$PYTHON" -m pytest tests/conformance -q -n 2 --thin -k "cuda and tile_edges and not wgmma and not kmajor" --timeout 600
)
"$PYTHON" -m pytest tests/test_batching_resident.py --cuda-machine 9.0 -q --timeout 300

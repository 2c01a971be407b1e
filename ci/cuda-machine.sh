# The conformance suite over every CUDA row on an emulated GPU, tests/cuda_machine: compute capability 9.0 for all rows, 5.3
# for those of any GPU, whose parts of k are then joined through memory and which have no cp.async.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install g++
conformance_venv
cd "$SOURCE"
export CUDA_MACHINE_BUILD=$CI_WORK/cuda-machine

emulated() { # NAME CAPABILITY CONDITION: on `row`
    (
        eval "$("$PYTHON" -m tests.cuda_machine "$2")"
        conformance "$1" "row.backend == 'cuda' and ($3)" -n 2 --thin --timeout 300
    )
}

emulated cuda-machine 9.0 True
emulated cuda-machine-53 5.3 "not any(need.startswith('sm_') for need in row.needs)"

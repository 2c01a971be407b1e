# A part of the conformance suite under Oclgrind: data races, uninitialised values, accesses out of bounds.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install oclgrind
conformance_venv
cd "$SOURCE"
checks='(layouts or tile_edges or batches or zero_strides or zero_sizes or never_reads or chain_depths or chain_tails)'

simulate() { # TARGET TESTS OPTION...: oclgrind itself succeeds whatever it finds
    local log
    log=$(mktemp "$CI_WORK/oclgrind-$1-XXXXXX")
    # A cache of its own: the one of kernels built with other options would serve.
    GEMM_CACHE_DIR=$log.cache oclgrind --log "$log" "${@:3}" \
        "$PYTHON" -m pytest tests/conformance -q --thin -k "$2 and $checks and not pyopencl" --require="$1" || failed=1
    [[ -s $log ]] || return 0
    head -n 60 "$log"
    failed=1
}

failed=0
# Oclgrind 21.10 takes what a kernel wrote to an image for uninitialised, so kernels with images are spared that check;
# with it, it cannot execute what clang makes of divisions beyond -O1. The variant that cuts products into many launches,
# too: after hundreds of them that check reports reads which no test of them alone repeats.
generic=$(kernels 'row.backend == "opencl" and "image" not in row.needs')
simulate adreno "$(kernels 'row.target == "adreno"')" --data-races
simulate generic "$generic and cramped" --data-races
simulate generic "$generic and not cramped" --data-races --uninitialized --build-options -O1
exit $failed

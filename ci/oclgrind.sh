# A part of the conformance suite under Oclgrind: data races, uninitialised values, accesses out of bounds.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install oclgrind
conformance_venv
cd "$SOURCE"

simulate() { # TARGET TESTS OPTION...: oclgrind itself succeeds whatever it finds
    local log
    log=$(mktemp "$CI_WORK/oclgrind-$1-XXXXXX")
    # A cache of its own: the one of kernels built with other options would serve.
    GEMM_CACHE_DIR=$log.cache oclgrind --log "$log" "${@:3}" \
        "$PYTHON" -m pytest tests/conformance -q --thin --every-row -k "$2 and not pyopencl" --require="$1" || failed=1
    [[ -s $log ]] || return 0
    head -n 60 "$log"
    failed=1
}

failed=0
# Oclgrind 21.10 takes what a kernel wrote to an image for uninitialised, so kernels with images are spared that check;
# with it, it cannot execute what clang makes of divisions beyond -O1. The variant that cuts products into many launches,
# too: after hundreds of them that check reports reads which no test of them alone repeats.
# Nor can it with that check execute `freeze`, which clang makes of x / y and x % y side by side, even at -O1.
every='(layouts or tile_edges or batches or zero_strides or zero_sizes or never_reads or chain_depths or chain_tails)'
plain='(sgemm_generic_naive or sgemm_generic_local_16x16)'
# One row of each form that shares tiles; simulated work-items take their time, and larger tiles have more of them.
tiles='sgemm_generic_tile_64x32 or sgemm_generic_tile_direct_32x32 or sgemm_generic_skinny_4x4 or sgemm_generic_dot_16x4'
tiles+=' or sgemm_generic_panel_4x24' # tile_edges has m that are no multiples of its rows
tiles="($tiles or sgemm_generic_local_vec4 or sgemm_intel_L3_SLM_8x8_4x16)"
simulate adreno "sgemm_adreno_image_8x4 and $every" --data-races
simulate generic "$plain and $every and cramped" --data-races
simulate generic "$plain and $every and not cramped" --data-races --uninitialized --build-options -O1
simulate generic "$tiles and tile_edges and not unroll and not cramped" --data-races --uninitialized --build-options -O1
exit $failed

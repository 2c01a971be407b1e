# Run a part of the conformance suite in Oclgrind, which finds data races, uninitialised values and accesses out of
# bounds.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install oclgrind
conformance_venv
cd "$SOURCE"

simulate() { # TARGET TESTS OPTION...: fail if the log has findings; oclgrind itself succeeds in any case
    local log
    log=$(mktemp "$CI_WORK/oclgrind-$1-XXXXXX")
    # Each run needs its own cache, because a shared cache would provide kernels built with other options.
    GEMM_CACHE_DIR=$log.cache oclgrind --log "$log" "${@:3}" \
        "$PYTHON" -m pytest tests/conformance -q --thin --every-row -k "$2 and not pyopencl" --require="$1" || failed=1
    [[ -s $log ]] || return 0
    head -n 60 "$log"
    failed=1
}

failed=0
# The check for uninitialised values of Oclgrind 21.10 has three faults:
#
# - It regards images written by a kernel as uninitialised. Kernels with images run without the check.
# - It cannot execute clang's code for divisions at optimisation levels above -O1. At -O1 it cannot execute `freeze`,
#   which clang uses for x / y next to x % y.
# - After hundreds of launches it reports reads that no single test reproduces. The variant that cuts products into many
#   launches ("cramped") runs without the check.
every='(layouts or tile_edges or batches or zero_strides or zero_sizes or never_reads or chain_depths or chain_tails)'
plain='(sgemm_generic_naive or sgemm_generic_local_16x16)'
# One row of each form that shares tiles in local memory. Larger tiles have more work-items, and simulating them is slow.
tiles='sgemm_generic_tile_64x32 or sgemm_generic_tile_direct_32x32 or sgemm_generic_skinny_4x4 or sgemm_generic_dot_16x4'
tiles+=' or sgemm_generic_panel_4x24' # tile_edges has m that are not multiples of this kernel's rows
tiles="($tiles or sgemm_generic_local_vec4 or sgemm_intel_L3_SLM_8x8_4x16)"
simulate adreno "sgemm_adreno_image_8x4 and $every" --data-races
# Where products are cut depends on their sizes and layouts, so that these checks show it.
simulate generic "$plain and (layouts or tile_edges or batches) and cramped" --data-races
simulate generic "$plain and $every and not cramped" --data-races --uninitialized --build-options -O1
simulate generic "$tiles and tile_edges and not unroll and not cramped" --data-races --uninitialized --build-options -O1
exit $failed

# Run the conformance suite on Intel's OpenCL runtime for CPUs, which can also run the kernels for Intel GPUs. One row of
# each source has all checks, also with operands on the device and with little memory. The other rows differ in tiles and
# types, and have the checks that find wrong tiles, strides and arithmetic. Then see that the extra opencl-intel-cpu alone
# makes gemm bench use the runtime.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
conformance_venv
# intel-cmplr-lib-rt has libsvml and libimf, which the runtime needs but does not declare as a dependency.
venv "$CI_WORK/intel" intel-opencl-rt intel-cmplr-lib-rt
# The package's .icd file names a folder of the machine that built it. Therefore OCL_ICD_VENDORS names the library.
export OCL_ICD_VENDORS=$CI_WORK/intel/lib/libintelocl.so LD_LIBRARY_PATH=$CI_WORK/intel/lib
conformance intel 'row.backend == "opencl" and not {"dpas", "wmma"} & {*row.name.split("_")}' --thin --require=opencl,intel \
    --siblings tile_edges,layouts,small_sizes,accuracy,subnormals,chain_layouts,chain_depths

emulated() { # FAMILIES CONDITION: the suite on rows for matrix units of GPUs, which tests/matrix_units emulates
    local rows
    rows=$(kernels "$2")
    "$PYTHON" -m pytest tests/conformance -q --thin --emulate-matrix-units "$1" --rows "$rows" --require="$rows" \
        --siblings tile_edges,layouts,small_sizes,accuracy,subnormals,scalars,non_finite,wrapping \
        --kernel-report "$CI_REPORTS/intel-${1##*,}.kernels.json"
}

emulated intel,gfx12 '{"dpas", "wmma"} & {*row.name.split("_")}'
emulated gfx11 '"wmma" in row.name and row.dtype == "int32"' # the other generation of AMD's, which has only these rows

unset OCL_ICD_VENDORS LD_LIBRARY_PATH
venv "$CI_WORK/intel-extra" "$SOURCE[opencl-intel-cpu]"
export GEMM_CACHE_DIR=$CI_WORK/intel-cache
"$CI_WORK/intel-extra/bin/gemm" bench --sizes 256 --seconds 1 --validate --backends cpu,opencl --json "$CI_WORK/intel-bench.json"
python3 - "$CI_WORK/intel-bench.json" <<'END' || die "gemm bench did not use the runtime that the extra opencl-intel-cpu installs"
import json, sys
bench = json.load(open(sys.argv[1]))
(key,) = (device["key"] for device in bench["devices"] if "Intel(R) OpenCL" in device["platform"])
assert any(row["device"] == key and row["valid"] for row in bench["results"])
END

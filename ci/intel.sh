# Run the conformance suite on Intel's OpenCL runtime for CPUs, which can also run the kernels for Intel GPUs. One row of
# each source has all checks, also with operands on the device and with little memory. The other rows differ in tiles and
# types, and have the checks that find wrong tiles, strides and arithmetic.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
conformance_venv
# intel-cmplr-lib-rt has libsvml and libimf, which the runtime needs but does not declare as a dependency.
venv "$CI_WORK/intel" intel-opencl-rt intel-cmplr-lib-rt
# The package's .icd file names a folder of the machine that built it. Therefore OCL_ICD_VENDORS names the library.
export OCL_ICD_VENDORS=$CI_WORK/intel/lib/libintelocl.so LD_LIBRARY_PATH=$CI_WORK/intel/lib
conformance intel 'row.backend == "opencl"' -n 2 --thin --require=opencl,intel \
    --siblings tile_edges,layouts,small_sizes,accuracy,subnormals,chain_layouts,chain_depths

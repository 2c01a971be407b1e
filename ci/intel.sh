# Run the conformance suite on Intel's OpenCL runtime for CPUs, which can also run the kernels for Intel GPUs.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
conformance_venv
# intel-cmplr-lib-rt has libsvml and libimf, which the runtime needs but does not declare as a dependency.
venv "$CI_WORK/intel" intel-opencl-rt intel-cmplr-lib-rt
# The package's .icd file names a folder of the machine that built it. Therefore OCL_ICD_VENDORS names the library.
export OCL_ICD_VENDORS=$CI_WORK/intel/lib/libintelocl.so LD_LIBRARY_PATH=$CI_WORK/intel/lib
conformance intel 'row.backend == "opencl"' -n 2 --thin --every-row --require=opencl,intel

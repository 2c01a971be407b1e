# The conformance suite on Intel's OpenCL runtime for CPUs, which also runs the kernels for Intel's GPUs.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
conformance_venv
# intel-cmplr-lib-rt brings libsvml and libimf, which the runtime needs without saying so.
venv "$CI_WORK/intel" intel-opencl-rt intel-cmplr-lib-rt
# The .icd file of the package names a folder of the machine that built it, so the loader gets the library itself.
export OCL_ICD_VENDORS=$CI_WORK/intel/lib/libintelocl.so LD_LIBRARY_PATH=$CI_WORK/intel/lib
conformance intel 'row.backend == "opencl"' -n 2 --thin --every-row --require=opencl,intel

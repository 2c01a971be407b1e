# The conformance suite on Debian's PoCL.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install pocl-opencl-icd
conformance_venv
export OCL_ICD_VENDORS=/etc/OpenCL/vendors/pocl.icd
conformance pocl -n 2 --thin --every-row -k "$(kernels 'row.backend == "opencl"')" --require=opencl

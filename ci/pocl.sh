# The conformance suite on Debian's PoCL: the forms for Adreno and Intel once, for it compiles them slowly; Intel's
# runtime, in the job intel, has every one of them.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install pocl-opencl-icd
conformance_venv
export OCL_ICD_VENDORS=/etc/OpenCL/vendors/pocl.icd
once='row.name in ("sgemm_adreno_image_8x4", "sgemm_intel_L3_SLM_8x8_4x16")'
conformance pocl -n 2 --thin --every-row --require=opencl \
    -k "$(kernels "row.backend == 'opencl' and (row.target == 'generic' or $once)")"

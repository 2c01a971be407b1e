# Run a part of the conformance suite on Debian's PoCL, with the rows that `auto` may choose there and with one row of
# each other source: each row at the edges of its tiles, and each check on a row of each family. PoCL compiles slowly. The
# job test runs all checks on PyPI's PoCL, which has the same compiler, and the job intel on another one.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install pocl-opencl-icd
conformance_venv
export OCL_ICD_VENDORS=/etc/OpenCL/vendors/pocl.icd
if ! "$PYTHON" -c 'import pyopencl as cl
devices = [device for platform in cl.get_platforms() for device in platform.get_devices()]
print(*[f"{device.name}: {device.version}" for device in devices], sep="\n")
[cl.Program(cl.Context([device]), "kernel void nothing() {}").build() for device in devices] or exit(1)'; then
    say "Debian's PoCL has no device here, or builds nothing for this CPU: it is tested where it does"
    exit
fi
once='"sgemm_adreno_image_8x4", "sgemm_intel_L3_SLM_8x8_4x16", "sgemm_generic_local_vec4", "sgemm_generic_tile_64x32"'
once="$once, 'sgemm_generic_tile_direct_32x32', 'sgemm_generic_skinny_4x4', 'sgemm_generic_dot_16x4'"
conformance pocl "row.backend == 'opencl' and ('cpu' in row.auto_kinds or row.name in ($once))" --smoke --every-row --require=opencl

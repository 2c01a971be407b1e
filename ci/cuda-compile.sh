# Compile the CUDA kernels for the oldest and the newest architectures, and OpenCL kernels for AMD GPUs. This needs no
# GPU.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install python3-venv
copy_source "$CI_WORK/cuda"
cd "$CI_WORK/cuda"
mapfile -t dependencies < <(requirements - numpy cffi)

compile() { # NAME REQUIREMENT OPTION...
    say "$*"
    venv "$CI_WORK/cuda-$1" "${dependencies[@]}" "$2"
    "$CI_WORK/cuda-$1/bin/python" benchmarks/cuda_compile.py "${@:3}" --json "$CI_REPORTS/nvrtc-${1%.*}.cuda.json"
}

# NVRTC 12.9 is the last version for sm_50 to sm_70; version 13 supports sm_75 and newer. The minor version is pinned,
# because assemblers allocate registers differently, and only the kernels should decide whether registers spill.
compile 12.9 'nvidia-cuda-nvrtc-cu12==12.9.*' --require sm_53 --only sm_50,sm_53,sm_60,sm_61,sm_70
compile 13 'nvidia-cuda-nvrtc==13.0.*' --require sm_90a

apt_install clang-19 rocm-device-libs
say "AMD GPUs"
"$CI_WORK/cuda-13/bin/python" benchmarks/amd_static.py --json "$CI_REPORTS/amd_static.json"

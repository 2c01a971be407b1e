# Faults of tests/mutants.json, planted in the sources one by one, each caught by its test: some of them, others each day.
# In an environment without the package: the runner compiles a copy of its own, which nothing else may hide.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install gcc g++ ccache libc6-dev python3-dev python3-venv
mapfile -t tools < <(requirements test numpy cffi platformdirs pytest pytest-xdist pytest-timeout hypothesis ml_dtypes)
venv "$CI_WORK/mutants" "${tools[@]}" "pyopencl[pocl]" setuptools
# One OpenCL runtime, whatever other jobs have installed: with two, the names of conformance tests have a device.
export OCL_ICD_VENDORS
OCL_ICD_VENDORS=$("$CI_WORK/mutants/bin/python" -c "import pyopencl, pathlib
print(pathlib.Path(pyopencl.__file__).parent / '.libs/pocl.icd')")
export CUDA_MACHINE_BUILD=$CI_WORK/cuda-machine # which the job cuda-machine makes, too
"$CI_WORK/mutants/bin/python" "$ROOT/tests/mutants.py" --sample 12

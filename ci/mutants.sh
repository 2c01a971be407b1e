# Plant some of the faults of tests/mutants.json in the sources, one by one; each must be caught by its test. The sample
# changes every day. The environment does not contain the package, because an installed package could hide the copy with
# the fault, which the runner compiles.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install gcc g++ ccache libc6-dev python3-dev python3-venv
mapfile -t tools < <(requirements test numpy cffi platformdirs pytest pytest-timeout hypothesis ml_dtypes)
venv "$CI_WORK/mutants" "${tools[@]}" "pyopencl[pocl]" setuptools
own_opencl "$CI_WORK/mutants"
"$CI_WORK/mutants/bin/python" "$ROOT/tests/mutants.py" --sample 12

# Run README.md's test command and its run command exactly as written, each in its own copy of the checkout.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
test_command=$(readme test) run_command=$(readme run)
apt_install gcc g++ ccache libc6-dev python3-dev python3-venv # tests/backends/cuda/test_cuda_machine.py needs g++

copy_source "$CI_WORK/test"
cd "$CI_WORK/test"
# Use the OpenCL runtime of the command alone, even while another job installs Debian's PoCL: with two, the conformance
# suite runs twice, and names of its tests contain a device. The job pocl tests Debian's.
OCL_ICD_VENDORS=$PWD/.venv/lib/$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')/site-packages/pyopencl/.libs/pocl.icd
export OCL_ICD_VENDORS
say "$test_command"
PYTEST_ADDOPTS="-n 2 --kernel-report=$CI_REPORTS/test.kernels.json" bash -c "$test_command"
.venv/bin/python ci/facts.py >"$CI_REPORTS/test.facts.json"

copy_source "$CI_WORK/run"
cd "$CI_WORK/run"
say "$run_command"
bash -c "$run_command"

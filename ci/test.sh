# Run README.md's test command and its run command exactly as written, each in its own copy of the checkout.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
test_command=$(readme test) run_command=$(readme run)
apt_install gcc g++ ccache libc6-dev python3-dev python3-venv # tests/backends/cuda/test_cuda_machine.py needs g++

copy_source "$CI_WORK/test"
cd "$CI_WORK/test"
own_opencl "$PWD/.venv"
say "$test_command"
# The job docs runs tests/test_documents.py and tests/test_document_commands.py, with all that they need.
PYTEST_ADDOPTS="-n 2 --ignore-glob tests/test_document* --kernel-report=$CI_REPORTS/test.kernels.json" bash -c "$test_command"
.venv/bin/python ci/facts.py >"$CI_REPORTS/test.facts.json"

copy_source "$CI_WORK/run"
cd "$CI_WORK/run"
say "$run_command"
bash -c "$run_command"

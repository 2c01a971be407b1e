# Run the conformance suite of the AMX kernels with their instructions emulated in C: tests/amx/emulated.h. All other
# builds compile real AMX instructions, which run only on a CPU with AMX.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install gcc ccache libc6-dev python3-dev python3-venv
mapfile -t tools < <(requirements test pytest pytest-timeout hypothesis ml_dtypes)
copy_source "$CI_WORK/amx"
cd "$CI_WORK/amx"
# By way of $CC, because $CFLAGS would replace Python's own flags, and ccache would find no object file of other jobs.
CC="$(python3 -c 'import sysconfig; print(sysconfig.get_config_var("CC"))') -DGEMM_EMULATE_AMX -I$PWD/tests/amx" venv .venv -e . "${tools[@]}"
# One row has the tests of repeated and of pending products: each computes three or four products by way of Python code
# that is the same for all rows. The job test runs them with one row of each type and with each row of float32.
rows=$(kernels 'row.target == "amx"')
.venv/bin/python -m pytest tests/conformance -q --rows "$rows" -k "bgemm_amx or not (repeated or pending)" --require=amx --kernel-report "$CI_REPORTS/amx.kernels.json"
.venv/bin/python -m pytest tests/backends/cpu/test_checked_kernels.py -q

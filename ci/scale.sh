# Test scaling out with dask, its workers, cubed and xarray. No other job installs them.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install gcc ccache libc6-dev python3-dev python3-venv
copy_source "$CI_WORK/scale/source"
mapfile -t tools < <(requirements test pytest pytest-timeout hypothesis ml_dtypes)
venv "$CI_WORK/scale/venv" -e "$CI_WORK/scale/source[scale,opencl-cpu]" "${tools[@]}"
own_opencl "$CI_WORK/scale/venv"

cd "$CI_WORK/scale/source"
"$CI_WORK/scale/venv/bin/python" -m pytest -q -rfEs tests/dask_arrays/test_dask.py tests/dask_arrays/test_dask_distributed.py tests/dask_arrays/test_scale_out.py tests/extras/test_chain.py |
    tee "$CI_WORK/scale/report.txt"
! grep -E '^SKIPPED' "$CI_WORK/scale/report.txt" || die "a test was skipped, and no other job runs it"

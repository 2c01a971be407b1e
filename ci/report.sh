# Check the report of `gemm bench --compare` in Debian's Chromium. $CI_REPORTS keeps the screenshot and the numbers.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install gcc ccache libc6-dev python3-dev python3-venv chromium
copy_source "$CI_WORK/report/source"
venv "$CI_WORK/report/venv" -e "$CI_WORK/report/source[bench,opencl-cpu]"
own_opencl "$CI_WORK/report/venv"

cd "$CI_WORK/report/source"
python=$CI_WORK/report/venv/bin/python
"$python" -m gemm bench --compare --quick --html "$CI_REPORTS/report.html" --json "$CI_REPORTS/report.json"
"$python" ci/check_report.py "$CI_REPORTS/report.html" "$CI_REPORTS/report.png"
say "the same products as pytest-benchmark's"
"$python" -m pytest benchmarks/suites -q -k squares --benchmark-quiet --benchmark-json "$CI_REPORTS/benchmark.json"

# The conformance suite of the CPU kernels on an emulated Cortex-A53: 64-bit Arm with NEON and nothing newer.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install python3-venv
copy_source "$CI_WORK/neon"
mkdir "$CI_WORK/neon/reports"
bash "$ROOT/ci/aarch64.sh" "$CI_WORK/neon" bash -euc '
    python3 build.py
    python3 ci/facts.py >reports/neon.facts.json
    python3 -m gemm verify --backends cpu --hashes --json reports/neon.hashes.json
    python3 -m pytest tests/conformance -n 2 -q --thin -k "$1" --require=neon --kernel-report reports/neon.kernels.json
' bash "$(kernels 'row.backend == "cpu"')" || status=$?
cp "$CI_WORK"/neon/reports/* "$CI_REPORTS"
exit "${status:-0}"

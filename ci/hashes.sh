# Compare the bits of reproducible=True over the kernels and runtimes of all jobs, and over the recorded runs on devices
# that CI lacks. Prints one table, and fails if hashes differ.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
pocl=$CI_REPORTS/pocl.hashes.json # missing if PoCL's compiler does not support this CPU
[[ -e $pocl ]] || pocl=
python3 "$ROOT/ci/compare_hashes.py" ${pocl:+"$pocl"} "$CI_REPORTS"/{intel,neon,cuda-machine,cuda-machine-53}.hashes.json "$ROOT"/benchmarks/results/*/hashes.json

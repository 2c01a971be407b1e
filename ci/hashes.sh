# The bits of reproducible=True on every kernel and runtime of the jobs, and of the recorded runs on devices that CI
# does not have, in one table: fails if they differ.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
pocl=$CI_REPORTS/pocl.hashes.json # absent where PoCL's compiler does not know the CPU
[[ -e $pocl ]] || pocl=
python3 "$ROOT/ci/compare_hashes.py" ${pocl:+"$pocl"} "$CI_REPORTS"/{intel,neon,cuda-machine,cuda-machine-53}.hashes.json "$ROOT"/benchmarks/results/*/hashes.json

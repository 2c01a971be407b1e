# The bits of reproducible=True on every kernel and runtime of the jobs, in one table: fails if they differ.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
python3 "$ROOT/ci/compare_hashes.py" "$CI_REPORTS"/{pocl,intel,neon}.hashes.json

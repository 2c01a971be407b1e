# Fails if a kernel ran in no job though some job's machine could run it.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
python3 "$ROOT/ci/skipped_everywhere.py" "$CI_REPORTS"

# Fail if a kernel ran in no job although a job's machine could run it.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
python3 "$ROOT/ci/skipped_everywhere.py" "$CI_REPORTS"

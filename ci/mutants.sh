# Faults of tests/mutants.json, planted in the sources one by one, each caught by its test: some of them, others each day.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
conformance_venv
"$PYTHON" "$ROOT/tests/mutants.py" --sample 12

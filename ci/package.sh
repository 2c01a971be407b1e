# sdist → wheel, repaired and audited as for a release (the aarch64 one: job neon) → fresh environments elsewhere, in which
# no compiler is in reach and the kernels must work. What cannot be built here must at least compile.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install gcc ccache libc6-dev python3-dev
wheel_tools
work=$CI_WORK/package
copy_source "$work/source"

# Not "python -m build": that would run our build.py first. The wheel is built from the sdist, which so proves complete.
"$TOOLS/pyproject-build" --outdir "$work/dist" "$work/source" >"$work/build.log" 2>&1 ||
    { tail -n 40 "$work/build.log"; die "the build failed"; }
repair_wheel "$work"/dist/*.whl "$work/wheel"
ls -l "$work/dist" "$work/wheel"
python3 "$ROOT/ci/check_dist.py" "$work"/dist/*.tar.gz "$work"/wheel/*.whl
wheel="gemm @ file://$(echo "$work"/wheel/*.whl)"

mkdir "$work/elsewhere"
cd "$work/elsewhere"
export PIP_ONLY_BINARY=:all: # nor may a dependency need a compiler
mapfile -t suite < <(requirements test pytest pytest-xdist pytest-timeout hypothesis ml_dtypes)
venv "$work/venv" "$wheel" "${suite[@]}" intel-opencl-rt intel-cmplr-lib-rt
say "the conformance suite from the wheel"
PATH=$work/venv/bin python "$work/source/ci/check_wheel.py" -n 2 -q --thin -k "$(kernels 'row.backend == "cpu"')" --require=cpu
say "from the wheel: how failures are met, and what an import brings along"
"$work/venv/bin/python" -m pytest -n 2 -q "$work"/source/tests/test_{faults,late,import}.py

oldest=$(requirements - numpy | sed 's/>=\(.*\)/==\1.*/')
say "the wheel beside $oldest"
venv "$work/oldest" "$wheel" "$oldest"
PATH=$work/oldest/bin python "$work/source/ci/check_wheel.py"
PATH=$work/oldest/bin gemm verify --quick --backends cpu

say "the document's program in C, with the wheel's header and library"
sed -n '/^```c$/,/^```$/{/^```/!p}' "$ROOT/docs/c-api.md" >program.c
# shellcheck disable=SC2046 # words
gcc program.c $("$work/venv/bin/python" -m gemm info --cc) -o program
[[ $(./program | tail -n 1) == 999 ]] || die "the wheel's libgemm computes wrongly"

say "OpenCL from the wheel"
# The short cases of a row show that its source is there and builds; the jobs pocl and intel check them all.
# On Intel's runtime, since PyPI's PoCL builds nothing for CPUs that are newer than its compiler.
export OCL_ICD_VENDORS=$work/venv/lib/libintelocl.so LD_LIBRARY_PATH=$work/venv/lib
first='row.backend == "opencl" and [each.source for each in rows].index(row.source) == rows.index(row)'
# shellcheck disable=SC2046 # words
"$work/venv/bin/python" -m gemm verify --quick $(named "$(kernels "$first")")
unset OCL_ICD_VENDORS LD_LIBRARY_PATH

say "the wheels of other systems"
for platform in linux macos windows; do
    "$TOOLS/cibuildwheel" --print-build-identifiers --platform $platform "$work/source"
done
"$TOOLS/pip" install -qq --no-deps --platform macosx_14_0_arm64 --target "$work/macos" numpy
"$TOOLS/python" "$work/source/ci/cross_compile.py" "$work/macos/numpy/_core/include"

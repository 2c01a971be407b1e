# sdist → wheel → a fresh environment outside the checkout, where the kernels must work.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install gcc ccache libc6-dev python3-dev python3-venv
work=$CI_WORK/package
copy_source "$work/source"
venv "$work/build" build

# Not "python -m build": that would run our build.py. The wheel is built from the sdist, which so proves complete.
"$work/build/bin/pyproject-build" --outdir "$work/dist" "$work/source" >"$work/build.log" 2>&1 ||
    { tail -n 40 "$work/build.log"; die "the build failed"; }
ls -l "$work/dist"
python3 "$ROOT/ci/check_dist.py" "$work"/dist/*.tar.gz "$work"/dist/*.whl

mkdir "$work/elsewhere"
cd "$work/elsewhere"
venv "$work/venv" "gemm @ file://$(echo "$work"/dist/*.whl)" intel-opencl-rt intel-cmplr-lib-rt
"$work/venv/bin/python" -m gemm verify --backends cpu
# The document's program in C, with the wheel's header and library.
sed -n '/^```c$/,/^```$/{/^```/!p}' "$ROOT/docs/c-api.md" >program.c
# shellcheck disable=SC2046 # words
gcc program.c $("$work/venv/bin/python" -m gemm info --cc) -o program
[[ $(./program | tail -n 1) == 999 ]] || die "the wheel's libgemm computes wrongly"
# Of OpenCL's, the short cases of a row show that its source is there and builds; the jobs pocl and intel check them all.
# On Intel's runtime, since PyPI's PoCL builds nothing for CPUs that are newer than its compiler.
export OCL_ICD_VENDORS=$work/venv/lib/libintelocl.so LD_LIBRARY_PATH=$work/venv/lib
first='row.backend == "opencl" and [each.source for each in rows].index(row.source) == rows.index(row)'
# shellcheck disable=SC2046 # words
"$work/venv/bin/python" -m gemm verify --quick $(named "$(kernels "$first")")

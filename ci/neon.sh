# The conformance suite of the CPU kernels on emulated Arm cores: each kernel on one that has what it needs, the base
# ones on a Cortex-A53, where anything newer is an illegal instruction, and products of libgemm; then 32-bit Arm, in C
# alone. Of plain C, which the other jobs test in every type, the two main ones.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install python3-venv gcc-arm-linux-gnueabihf libc6-dev-armhf-cross qemu-user-static
copy_source "$CI_WORK/neon"
mkdir "$CI_WORK/neon/reports"

conform() { # CPU NAME EXPRESSION [WORD]: with the word "hashes", these too
    [[ $3 != "()" ]] || return 0 # no such row
    QEMU_CPU=$1 bash "$ROOT/ci/aarch64.sh" "$CI_WORK/neon" bash -euc '
        python3 build.py
        python3 ci/facts.py >"reports/$1.facts.json"
        [[ $3 != hashes ]] || python3 -m gemm verify --backends cpu --hashes --json "reports/$1.hashes.json"
        python3 -m pytest tests/conformance -n 2 -q --thin -k "$2" --require=neon --kernel-report "reports/$1.kernels.json"
        [[ $3 != hashes ]] || python3 -m pytest -q tests/test_c_products.py -k "c-row or bits"
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

# Test the C engine, kernels and driver: with the address and undefined-behaviour sanitizers on libFuzzer's inputs, and
# with the thread sanitizer under many concurrent callers and forks. Each runs for GEMM_FUZZ_SECONDS (default 60).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install clang libclang-rt-14-dev libc6-dev python3-dev python3-venv
work=$CI_WORK/sanitize seconds=${GEMM_FUZZ_SECONDS:-60}
copy_source "$work/source"
cd "$work/source"
mapfile -t cffi < <(requirements - cffi)
venv "$work/venv" "${cffi[@]}" setuptools

# ci/engine.py lists what build.py compiles, so a new row needs no change here.
"$work/venv/bin/python" ci/engine.py "$work" >"$work/sources"
mapfile -t sources <"$work/sources"
say "$(grep -c ROW "$work/rows.h") kernels in ${#sources[@]} files"

build() { # FOLDER FLAG...: compile the engine's objects
    mkdir -p "$1"
    local source
    for source in "${sources[@]}"; do
        clang "${flags[@]}" "${@:2}" -c "$source" -o "$1/$(basename "$source" .c).o"
    done
}
# Without optimisation, because compiling instrumented, fully unrolled tiles with optimisation takes minutes for each.
# Reports need only lines, no variables.
flags=(-gline-tables-only -O0 -std=c11 -ffp-contract=off -fno-math-errno -fno-omit-frame-pointer -pthread -Icsrc -I"$work"
    -DGEMM_EMULATE_AMX -Itests/amx)
memory=(-fsanitize=address,undefined -fno-sanitize-recover=all)

say "address and undefined behaviour: $seconds s"
build "$work/memory" "${memory[@]}" -fsanitize=fuzzer-no-link
clang "${flags[@]}" "${memory[@]}" -fsanitize=fuzzer tests/fuzz/fuzz_engine.c "$work"/memory/*.o -lm -o "$work/fuzz"
mkdir "$work/corpus"
"$work/fuzz" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=2048 -max_len=400 -len_control=0 -seed=1 -verbosity=0 \
    -print_final_stats=1 -artifact_prefix="$work/" "$work/corpus" 2>&1 | tail -n 40

say "races: $seconds s"
build "$work/threads" -fsanitize=thread
clang "${flags[@]}" -fsanitize=thread tests/fuzz/race_engine.c "$work"/threads/*.o -lm -o "$work/race"
TSAN_OPTIONS="halt_on_error=1 die_after_fork=0" "$work/race" "$seconds"

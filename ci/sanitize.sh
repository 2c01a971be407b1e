# Test the C engine, kernels and driver: with the address and undefined-behaviour sanitizers on libFuzzer's inputs, and
# with the thread sanitizer under many concurrent callers and forks. Each runs for GEMM_FUZZ_SECONDS; by default there are
# 1,000 inputs, and 30 s of callers.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
apt_install clang ccache libclang-rt-14-dev libc6-dev python3-dev python3-venv
work=$CI_WORK/sanitize seconds=${GEMM_FUZZ_SECONDS:-30}
inputs=(-runs=1000 -max_total_time=150)
[[ ! -v GEMM_FUZZ_SECONDS ]] || inputs=(-max_total_time="$seconds")
copy_source "$work/source"
cd "$work/source"
mapfile -t cffi < <(requirements - cffi)
venv "$work/venv" "${cffi[@]}" setuptools

# ci/engine.py lists what build.py compiles, so a new row needs no change here. These kernels take half of the time to
# compile, and are left out: each differs from its sibling of another type or with other vectors only in macros. Every
# template is compiled with AVX2, with AVX-512 and in every type. The conformance suite has all kernels read up to the
# end of a page (page_ends).
siblings=hgemm_avx512_6x64,cgemm_avx512_6x32,dgemm_avx512_6x32,i32gemm_avx512_12x32,zgemm_avx2_6x4,sgemm_avx2_6x16
"$work/venv/bin/python" ci/engine.py "$work" | grep -vE "/(${siblings//,/|})\.c$" >"$work/sources"
sed -i -E "/\((${siblings//,/|}),/d" "$work/rows.h"
say "$(grep -c ROW "$work/rows.h") kernels in $(wc -l <"$work/sources") files"

# Without optimisation, because compiling instrumented, fully unrolled tiles with optimisation takes minutes for each.
# Reports need only lines, no variables.
flags=(-gline-tables-only -O0 -std=c11 -ffp-contract=off -fno-math-errno -fno-omit-frame-pointer -pthread -Icsrc -I"$work"
    -DGEMM_EMULATE_AMX -Itests/amx)
memory=(-fsanitize=address,undefined -fno-sanitize-recover=all)

build() { # FOLDER FLAG...: compile the sources that are named on standard input
    mkdir -p "$1"
    xargs -P 2 -I{} bash -c 'clang "${@:3}" -c "$2" -o "$1/$(basename "$2" .c).o"' bash "$1" {} "${flags[@]}" "${@:2}"
}

say "address and undefined behaviour"
# Only the driver is instrumented for libFuzzer: its branches lead to all others, and products run twice as fast.
grep /driver/ "$work/sources" | build "$work/memory" "${memory[@]}" -fsanitize=fuzzer-no-link
grep -v /driver/ "$work/sources" | build "$work/memory" "${memory[@]}"
# -O1 for the program itself, which fills, copies and compares operands: an input takes half the time.
clang "${flags[@]}" -O1 "${memory[@]}" -fsanitize=fuzzer tests/fuzz/fuzz_engine.c "$work"/memory/*.o -lm -o "$work/fuzz"
say "fuzzing"
mkdir "$work/corpus"
"$work/fuzz" "${inputs[@]}" -timeout=30 -rss_limit_mb=2048 -max_len=400 -len_control=0 -seed=1 -verbosity=0 \
    -print_final_stats=1 -artifact_prefix="$work/" "$work/corpus" 2>&1 | tail -n 40

say "races: $seconds s"
build "$work/threads" -fsanitize=thread <"$work/sources"
clang "${flags[@]}" -fsanitize=thread tests/fuzz/race_engine.c "$work"/threads/*.o -lm -o "$work/race"
say "racing"
TSAN_OPTIONS="halt_on_error=1 die_after_fork=0" "$work/race" "$seconds"

/* The AMX instructions that csrc/amx uses, in plain C, for machines without AMX. They follow Intel's Software
 * Developer's Manual. A build with -DGEMM_EMULATE_AMX -Itests/amx uses these functions, and then
 * csrc/driver/cpu_features.c reports AMX as present. */
#ifndef GEMM_TESTS_AMX_EMULATED_H
#define GEMM_TESTS_AMX_EMULATED_H

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct amx_configuration {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} amx_configuration;

static _Thread_local amx_configuration amx_state; /* palette 0: any use of a register traps */
static _Thread_local uint8_t amx_tile[8][16][64];

static inline void amx_check(int tile) {
    if (amx_state.palette != 1 || tile < 0 || tile > 7 || !amx_state.rows[tile] || amx_state.rows[tile] > 16 ||
        amx_state.bytes[tile] > 64 || amx_state.bytes[tile] % 4)
        abort();
}

static inline void amx_load_configuration(const void *from) {
    memcpy(&amx_state, from, sizeof amx_state);
    memset(amx_tile, 0, sizeof amx_tile);
}

static inline void amx_load(int tile, const void *from, int64_t step) {
    amx_check(tile);
    memset(amx_tile[tile], 0, sizeof amx_tile[tile]);
    for (int row = 0; row < amx_state.rows[tile]; row++)
        memcpy(amx_tile[tile][row], (const char *)from + row * step, amx_state.bytes[tile]);
}

static inline void amx_store(int tile, void *to, int64_t step) {
    amx_check(tile);
    for (int row = 0; row < amx_state.rows[tile]; row++)
        memcpy((char *)to + row * step, amx_tile[tile][row], amx_state.bytes[tile]);
}

static inline void amx_check_product(int sums, int x, int y) {
    amx_check(sums), amx_check(x), amx_check(y);
    if (sums == x || sums == y || x == y || amx_state.rows[sums] != amx_state.rows[x] ||
        amx_state.bytes[sums] != amx_state.bytes[y] || amx_state.bytes[x] / 4 != amx_state.rows[y])
        abort();
}

static inline int32_t amx_byte(uint8_t bits, int is_signed) {
    return is_signed ? (int8_t)bits : bits;
}

static inline void amx_bytes(int sums, int x, int y, int x_signed, int y_signed) {
    amx_check_product(sums, x, y);
    for (int row = 0; row < amx_state.rows[sums]; row++)
        for (int group = 0; group < amx_state.rows[y]; group++)
            for (int column = 0; column < amx_state.bytes[sums] / 4; column++) {
                uint32_t sum;
                memcpy(&sum, &amx_tile[sums][row][4 * column], sizeof sum);
                for (int i = 0; i < 4; i++)
                    sum += (uint32_t)(amx_byte(amx_tile[x][row][4 * group + i], x_signed) *
                                      amx_byte(amx_tile[y][group][4 * column + i], y_signed));
                memcpy(&amx_tile[sums][row][4 * column], &sum, sizeof sum);
            }
}

/* Replaces a subnormal by zero, as the instructions do for operands and results. */
static inline float amx_flushed(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (!(bits & 0x7F800000)) bits &= 0x80000000;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float amx_half(int tile, int row, int index) {
    uint16_t half;
    memcpy(&half, &amx_tile[tile][row][2 * index], sizeof half);
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return amx_flushed(x);
}

static inline void amx_halves(int sums, int x, int y) {
    amx_check_product(sums, x, y);
    for (int row = 0; row < amx_state.rows[sums]; row++)
        for (int column = 0; column < amx_state.bytes[sums] / 4; column++) {
            float sum, even = 0, odd = 0;
            memcpy(&sum, &amx_tile[sums][row][4 * column], sizeof sum);
            for (int group = 0; group < amx_state.rows[y]; group++) {
                even = amx_flushed(even + amx_half(x, row, 2 * group) * amx_half(y, group, 2 * column));
                odd = amx_flushed(odd + amx_half(x, row, 2 * group + 1) * amx_half(y, group, 2 * column + 1));
            }
            sum = amx_flushed(amx_flushed(sum) + amx_flushed(even + odd));
            memcpy(&amx_tile[sums][row][4 * column], &sum, sizeof sum);
        }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbusd
#undef _tile_dpbuud
#undef _tile_dpbf16ps
#define _tile_loadconfig(from) amx_load_configuration(from)
#define _tile_release() memset(&amx_state, 0, sizeof amx_state)
#define _tile_zero(tile) (amx_check(tile), (void)memset(amx_tile[tile], 0, sizeof amx_tile[tile]))
#define _tile_loadd(tile, from, step) amx_load(tile, from, step)
#define _tile_stored(tile, to, step) amx_store(tile, to, step)
#define _tile_dpbssd(sums, x, y) amx_bytes(sums, x, y, 1, 1)
#define _tile_dpbusd(sums, x, y) amx_bytes(sums, x, y, 0, 1)
#define _tile_dpbuud(sums, x, y) amx_bytes(sums, x, y, 0, 0)
#define _tile_dpbf16ps(sums, x, y) amx_halves(sums, x, y)

#endif

/* panel.h's tile in Intel's AMX registers. A register is a matrix of 16 lines of 64 bytes. One instruction multiplies a
 * register of a by a register of b and adds the result to a register of 16 x 16 sums. The register of a holds 16 rows
 * of K_GROUP elements (64 bytes) along k. The register of b holds K_GROUP elements along k of 16 columns: line q holds,
 * for each column, bytes 4 * q to 4 * q + 3 of these elements. A tile of 2 x 2 registers of sums needs one load per
 * multiplication, and the CPU executes loads and multiplications at the same rate.
 *
 *   K_GROUP                32 or 64: number of elements in a line of a register
 *   STEP(sums, x, y)       the multiplication; the arguments are register numbers
 *
 * The other parameters of panel.h, except those of the tile, are defined before this header or by a later header.
 */
#ifdef GEMM_EMULATE_AMX
#include "emulated.h"
#else
#include <immintrin.h>
#endif
#include <stdint.h>
#include <string.h>

#include "group.h"
#include "panel_compiler.h"

#define MR 32
#define NV 2
#define VL 16
#define TILE
#define PACK
#define ENTER configure();
#define LEAVE _tile_release();

/* GROUP: elements that a panel holds for K_GROUP steps of k; they fill two registers */
enum { LINES = 16, LINE = 64 /* bytes */, GROUP = MR * K_GROUP };

/* A compiler barrier before tile instructions: GCC's intrinsics do not declare that they read memory. */
#ifdef __GNUC__
#define WRITTEN __asm__ volatile("" ::: "memory");
#else
#define WRITTEN
#endif

/* Configures all eight registers at their full size. Each thread has its own registers and its own configuration. */
TARGET static void configure(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int i = 0; i < 8; i++) shape.bytes[i] = LINE, shape.rows[i] = LINES;
    WRITTEN
    _tile_loadconfig(&shape);
}

/* Registers 0 to 3 hold the sums, 4 and 5 hold a, 6 and 7 hold b. Tiles of up to 16 rows do not use 2, 3 and 5. */
TARGET INLINE void tile(const int rows, int64_t k, const PA *a, const PB *b, const SUM *from, int64_t from_rs, SUM *to,
                        int64_t to_rs) {
    const int two = rows > LINES;
    const int64_t from_step = from_rs * (int64_t)sizeof(SUM), to_step = to_rs * (int64_t)sizeof(SUM);
    WRITTEN
    if (from) {
        _tile_loadd(0, from, from_step);
        _tile_loadd(1, from + LINES, from_step);
        if (two) {
            _tile_loadd(2, from + LINES * from_rs, from_step);
            _tile_loadd(3, from + LINES * from_rs + LINES, from_step);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t p = 0; p < k; p += K_GROUP, a += GROUP, b += GROUP) {
        _tile_loadd(6, b, LINE);
        _tile_loadd(4, a, LINE);
        STEP(0, 4, 6);
        _tile_loadd(7, b + LINES * K_GROUP, LINE);
        STEP(1, 4, 7);
        if (two) {
            _tile_loadd(5, a + LINES * K_GROUP, LINE);
            STEP(2, 5, 6);
            STEP(3, 5, 7);
        }
    }
    _tile_stored(0, to, to_step);
    _tile_stored(1, to + LINES, to_step);
    if (two) {
        _tile_stored(2, to + LINES * to_rs, to_step);
        _tile_stored(3, to + LINES * to_rs + LINES, to_step);
    }
}

/* Packing. For each K_GROUP steps of k, a panel of a or b holds the contents of two registers, one after the other. In
 * memory, the elements of a matrix are usually contiguous, either along k or across k (along the rows of a, the columns
 * of b). In a panel of a, elements must be contiguous along k. In a panel of b, each column's elements along k form
 * groups of 4 bytes, and the groups of neighbouring columns must be contiguous. */

/* Writes 4 bytes along k for each of 16 columns. In memory, the 16 elements of one step of k are contiguous. */
TARGET INLINE void interleave(char *to, const PA *x, int64_t ps) {
    __m128i *out = (__m128i *)to;
#if K_GROUP == 64
#define AT(p) _mm_loadu_si128((const __m128i *)(x + (p) * ps))
    const __m128i low01 = _mm_unpacklo_epi8(AT(0), AT(1)), high01 = _mm_unpackhi_epi8(AT(0), AT(1));
    const __m128i low23 = _mm_unpacklo_epi8(AT(2), AT(3)), high23 = _mm_unpackhi_epi8(AT(2), AT(3));
    _mm_storeu_si128(out, _mm_unpacklo_epi16(low01, low23));
    _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(low01, low23));
    _mm_storeu_si128(out + 2, _mm_unpacklo_epi16(high01, high23));
    _mm_storeu_si128(out + 3, _mm_unpackhi_epi16(high01, high23));
#else
#define AT(p, i) _mm_loadu_si128((const __m128i *)(x + (p) * ps + 8 * (i)))
    EACH(i, 2) {
        _mm_storeu_si128(out + 2 * i, _mm_unpacklo_epi16(AT(0, i), AT(1, i)));
        _mm_storeu_si128(out + 2 * i + 1, _mm_unpackhi_epi16(AT(0, i), AT(1, i)));
    }
#endif
#undef AT
}

/* Transposes 16 lines of 16 groups of 4 bytes. The distance between the lines of `from` is `step` bytes. */
TARGET INLINE void transpose(char *to, const char *from, int64_t step) {
    for (int i = 0; i < LINES; i += 4)
        for (int j = 0; j < LINES; j += 4) {
            __m128 row[4];
            EACH(q, 4) row[q] = _mm_castsi128_ps(_mm_loadu_si128((const __m128i *)(from + (i + q) * step + 4 * j)));
            _MM_TRANSPOSE4_PS(row[0], row[1], row[2], row[3]);
            EACH(q, 4) _mm_storeu_si128((__m128i *)(to + (j + q) * LINE + 4 * i), _mm_castps_si128(row[q]));
        }
}

/* Packs a (across = 0) or b (across = 1). */
TARGET INLINE void pack(void *panels, const void *matrix, int64_t rs, int64_t ps, int64_t rows, int64_t k,
                        const int across) {
    enum { SIZE = sizeof(PA), PER_GROUP = 4 / SIZE };
    char *to = (char *)panels, crossed[2 * LINES * LINE];
    for (int64_t i0 = 0; i0 < rows; i0 += MR)
        for (int64_t p0 = 0; p0 < k; p0 += K_GROUP, to += 2 * LINES * LINE) {
            const PA *x = (const PA *)matrix + i0 * rs + p0 * ps;
            const int64_t count = rows - i0 < MR ? rows - i0 : MR, depth = k - p0 < K_GROUP ? k - p0 : K_GROUP;
            /* a zero-padded copy, used if the registers are incomplete or neither axis of the matrix is contiguous */
            PA piece[MR][K_GROUP];
            int64_t step = rs;
            const int along = ps == 1, whole = count == MR && depth == K_GROUP;
            if (!whole || (!along && rs != 1)) {
                memset(piece, 0, sizeof piece);
                for (int64_t i = 0; i < count; i++)
                    for (int64_t p = 0; p < depth; p++) piece[i][p] = x[i * rs + p * ps];
                x = piece[0], step = K_GROUP;
            } else if (!along) {
                char *out = across ? to : crossed;
                for (int q = 0; q < LINES; q++)
                    EACH(half, 2)
                        interleave(out + (half * LINES + q) * LINE, x + q * PER_GROUP * ps + half * LINES, ps);
                if (!across)
                    EACH(half, 2) transpose(to + half * LINES * LINE, out + half * LINES * LINE, LINE);
                continue;
            }
            if (across) {
                EACH(half, 2) transpose(to + half * LINES * LINE, (const char *)(x + half * LINES * step), step * SIZE);
            } else {
                EACH(i, MR) memcpy(to + i * LINE, x + i * step, LINE);
            }
        }
}

TARGET static void pack_a(void *panels, const void *a, int64_t rs, int64_t ps, int64_t rows, int64_t k, int64_t width) {
    (void)width;
    pack(panels, a, rs, ps, rows, k, 0);
}

TARGET static void pack_b(void *panels, const void *b, int64_t rs, int64_t ps, int64_t rows, int64_t k, int64_t width) {
    (void)width;
    pack(panels, b, rs, ps, rows, k, 1);
}

/* panel.h's tile with matrix instructions. MMLA adds the product of 2 x K_GROUP elements of a and K_GROUP x 2 elements
 * of b to a block of 2 x 2 sums. The tile is MR x NR = 8 x 8: 16 blocks of sums, 4 vectors of b, 4 vectors of a.
 *
 *   ACC                         a block of 2 x 2 sums; each half of an ACC is a row of 2 sums
 *   JOIN_HALVES, LOW, HIGH      make an ACC from its upper and lower row; return its upper row; return its lower row
 *   GET_HALF, PUT_HALF          load and store a row of 2 sums
 *   LOAD_A, LOAD_B              load 16 bytes
 */
#include <stdint.h>

#include "panel_compiler.h"

TARGET INLINE void tile(const int rows, int64_t k, const PA *a, const PB *b, const SUM *from, int64_t from_rs, SUM *to,
                        int64_t to_rs) {
    enum { DOWN = 4, ACROSS = 4 };
    const int down = (rows + 1) / 2;
    ACC acc[DOWN][ACROSS];
    EACH(i, down)
        EACH(j, ACROSS) {
            acc[i][j] = ZERO;
            if (from) {
                const SUM *upper = from + 2 * i * from_rs + 2 * j, *lower = 2 * i + 1 < rows ? upper + from_rs : upper;
                acc[i][j] = JOIN_HALVES(GET_HALF(upper), GET_HALF(lower));
            }
        }
    for (int64_t p = 0; p < k; p += K_GROUP, a += 8 * K_GROUP, b += 8 * K_GROUP) {
        Y y[ACROSS];
        EACH(j, ACROSS) y[j] = LOAD_B(b + 2 * K_GROUP * j);
        EACH(i, down) {
            const X x = LOAD_A(a + 2 * K_GROUP * i);
            EACH(j, ACROSS) acc[i][j] = MMLA(acc[i][j], x, y[j]);
        }
    }
    EACH(i, down)
        EACH(j, ACROSS) {
            SUM *at = to + 2 * i * to_rs + 2 * j;
            PUT_HALF(at, LOW(acc[i][j]));
            if (2 * i + 1 < rows) PUT_HALF(at + to_rs, HIGH(acc[i][j]));
        }
}
#define TILE tile

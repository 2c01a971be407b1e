/* Loads a group of contiguous 8- or 16-bit elements, 4 bytes in total, as one 32-bit number for a broadcast. */
#include <stdint.h>
#include <string.h>

static inline int32_t group_of(const void *p) {
    int32_t bits;
    memcpy(&bits, p, sizeof bits);
    return bits;
}

// What a warp multiplies: ldmatrix, mma.sync of doubles, wgmma.
#include "run.h"
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace machine {
namespace {

bool truncates() {
    static const bool yes = !getenv("CUDA_MACHINE_SUM") || strcmp(getenv("CUDA_MACHINE_SUM"), "nearest");
    return yes;
}

float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

float small_float(uint32_t bits, int exponents, int mantissa) {
    const int bias = (1 << (exponents - 1)) - 1, e = (int)(bits >> mantissa & ((1u << exponents) - 1));
    const uint32_t m = bits & ((1u << mantissa) - 1);
    float value = std::ldexp((float)(e ? m | 1u << mantissa : m), (e ? e : 1) - bias - mantissa);
    if (e == (1 << exponents) - 1) value = m ? NAN : INFINITY;
    return bits >> (exponents + mantissa) & 1 ? -value : value;
}

struct Tables {
    float f16[65536], e4m3[256], e5m2[256];
    Tables() {
        for (unsigned i = 0; i < 65536; ++i) f16[i] = small_float(i, 5, 10);
        for (unsigned i = 0; i < 256; ++i) e5m2[i] = small_float(i, 5, 2);
        for (unsigned i = 0; i < 256; ++i) // its highest exponent holds numbers, too: widen it by one
            e4m3[i] = (i & 127) == 127 ? NAN : small_float((i & 128) << 1 | (i & 127), 5, 3) * 256; // bias 15 to 7
    }
};

const Tables &tables() {
    static const Tables all;
    return all;
}

int bytes_of(Type type) {
    return type == TF32 ? 4 : type == F16 || type == BF16 ? 2 : 1;
}

// Elements of `bytes` bytes at `from`, as floats `step` apart.
void widen(float *to, int step, const void *from, int bytes, Type type) {
    const auto *words = (const uint32_t *)from;
    const auto *halves = (const uint16_t *)from;
    const auto *octets = (const uint8_t *)from;
    const Tables &all = tables();
    switch (type) {
    case F16:
        for (int i = 0; i < bytes / 2; ++i) to[i * step] = all.f16[halves[i]];
        break;
    case BF16:
        for (int i = 0; i < bytes / 2; ++i) to[i * step] = from_bits((uint32_t)halves[i] << 16);
        break;
    case TF32:
        for (int i = 0; i < bytes / 4; ++i) to[i * step] = from_bits(words[i] & ~0x1FFFu);
        break;
    case S8:
        for (int i = 0; i < bytes; ++i) to[i * step] = (float)(int8_t)octets[i];
        break;
    case U8:
        for (int i = 0; i < bytes; ++i) to[i * step] = (float)octets[i];
        break;
    default:
        for (int i = 0; i < bytes; ++i) to[i * step] = (type == E4M3 ? all.e4m3 : all.e5m2)[octets[i]];
    }
}

struct Operand { // a and b of a product: [row or column][k]
    float at[256][32];
    bool zero[256], finite[256];
    void look(int count, int depth) {
        for (int i = 0; i < count; ++i) {
            float sum = 0, none = 0;
            for (int k = 0; k < depth; ++k) {
                sum += std::fabs(at[i][k]);
                none += at[i][k] * 0;
            }
            zero[i] = sum == 0;
            finite[i] = none == 0;
        }
    }
};

// acc + the sum of `depth` products, for 8 columns. As Hopper's tensor cores do it, as far as is known: all addends are
// aligned to the largest one and cut to `kept` bits after its leading one, the sum is exact and cut to float (see
// tests/oracle/tensor_core.py). Otherwise: summed in double, rounded once to nearest.
constexpr int WIDE = 8;

void dots(double *acc, const double *a, const double (*b)[WIDE], int depth, int kept) {
    double largest[WIDE], up[WIDE], down[WIDE], sum[WIDE];
    for (int c = 0; c < WIDE; ++c) largest[c] = std::fabs(acc[c]);
    for (int k = 0; k < depth; ++k)
        for (int c = 0; c < WIDE; ++c) {
            const double size = std::fabs(a[k] * b[k][c]);
            largest[c] = size > largest[c] ? size : largest[c];
        }
    for (int c = 0; c < WIDE; ++c) {
        int64_t bits;
        memcpy(&bits, &largest[c], 8);
        int64_t unit = (bits >> 52) - 1023 - kept; // all addends are counted in 2^unit
        unit = unit < -200 ? -200 : unit;
        const int64_t upwards = (1023 - unit) << 52, downwards = (1023 + unit) << 52;
        memcpy(&up[c], &upwards, 8);
        memcpy(&down[c], &downwards, 8);
        sum[c] = std::trunc(acc[c] * up[c]);
    }
    for (int k = 0; k < depth; ++k)
        for (int c = 0; c < WIDE; ++c) sum[c] += std::trunc(a[k] * b[k][c] * up[c]);
    for (int c = 0; c < WIDE; ++c) {
        const double total = sum[c] * down[c];
        int64_t bits;
        memcpy(&bits, &total, 8);
        bits &= ~0x1FFFFFFFll; // 24 bits remain
        memcpy(&acc[c], &bits, 8);
    }
}

void plain_dots(double *acc, const double *a, const double (*b)[WIDE], int depth) {
    for (int c = 0; c < WIDE; ++c)
        for (int k = 0; k < depth; ++k) acc[c] += a[k] * b[k][c];
}

// `kept` bits remain of a float after its leading one; no product of such types leaves a subnormal sum.
void cut(float &value, int kept) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits &= ~0u << (23 - kept);
    memcpy(&value, &bits, 4);
}

// d[row][column] += a[row][k] * b[column][k]
template <class Sum>
void multiply_add(const Operand &a, const Operand &b, int rows, int columns, int depth, int kept, Sum sum) {
    for (int first = 0; first < columns; first += WIDE) {
        double y[32][WIDE];
        bool zero = true, finite = true;
        for (int c = 0; c < WIDE; ++c) {
            zero = zero && b.zero[first + c];
            finite = finite && b.finite[first + c];
            for (int k = 0; k < depth; ++k) y[k][c] = b.at[first + c][k];
        }
        for (int row = 0; row < rows; ++row) {
            const bool nothing = (zero && a.finite[row]) || (finite && a.zero[row]);
            if (nothing) { // but zeros, too, have the accumulator cut
                for (int c = 0; c < WIDE && kept < 24 && truncates(); ++c) cut(sum(row, first + c), kept);
                continue;
            }
            double x[32], acc[WIDE];
            bool all = finite && a.finite[row];
            for (int k = 0; k < depth; ++k) x[k] = a.at[row][k];
            for (int c = 0; c < WIDE; ++c) {
                acc[c] = sum(row, first + c);
                all = all && std::isfinite(acc[c]);
            }
            all &&truncates() ? dots(acc, x, y, depth, kept) : plain_dots(acc, x, y, depth);
            for (int c = 0; c < WIDE; ++c) sum(row, first + c) = (float)acc[c];
        }
    }
}

int kept_bits(Type type) {
    return type == E4M3 || type == E5M2 ? 13 : 24;
}

// Byte address of element (row, k) of a matrix that a descriptor tells of; `row` counts along m or n.
unsigned described(uint64_t d, unsigned row, unsigned k, int size, bool transposed) {
    const unsigned start = (unsigned)(d & 0x3FFF) << 4, leading = (unsigned)(d >> 16 & 0x3FFF) << 4,
                   stride = (unsigned)(d >> 32 & 0x3FFF) << 4, kind = (unsigned)(d >> 62);
    const unsigned width = kind == 1 ? 128 : kind == 2 ? 64 : kind == 3 ? 32 : 16, mask = width / 16 - 1;
    unsigned address = start;
    if (!transposed) {
        const unsigned byte = k * (unsigned)size;
        address += row / 8 * stride + row % 8 * width + (kind ? byte : byte / 16 * leading + byte % 16);
    } else {
        const unsigned across = width / (unsigned)size; // elements of m or n in an atom
        address += k % 8 * width + row % across * (unsigned)size;
        address += kind ? row / across * leading + k / 8 * stride : row / across * stride + k / 8 * leading;
    }
    address &= 0x3FFFF;
    return address ^ ((address >> 7 & mask) << 4);
}

// `count` rows of a matrix, from row `first` on, by chunks of 16 bytes, which no swizzle tears apart.
void fetch(Operand &to, Block &block, uint64_t d, unsigned first, int count, int size, bool transposed, Type type,
           const char *what) {
    const int chunk = 16 / size, depth = 32 / size;
    if (!transposed) {
        for (int row = 0; row < count; ++row)
            for (int k = 0; k < depth; k += chunk) {
                const unsigned at = described(d, first + (unsigned)row, (unsigned)k, size, false);
                widen(to.at[row] + k, 1, shared_at(block, at, 16, what), 16, type);
            }
        return;
    }
    for (int row = 0; row < count; row += chunk)
        for (int k = 0; k < depth; ++k) {
            const unsigned at = described(d, first + (unsigned)row, (unsigned)k, size, true);
            widen(&to.at[row][k], 32, shared_at(block, at, 16, what), 16, type);
        }
}

} // namespace

namespace {
// That a product will read `count` rows of a matrix, from row `first` on.
void watch(uint64_t d, unsigned first, int count, int size, bool transposed) {
    const int chunk = 16 / size, depth = 32 / size;
    for (int row = 0; row < count; row += transposed ? chunk : 1)
        for (int k = 0; k < depth; k += transposed ? 1 : chunk)
            multiplied(*current->block, described(d, first + (unsigned)row, (unsigned)k, size, transposed), 16);
}
} // namespace

// The rows of d that belong to one warp of a warpgroup.
void multiply(const Product &product, Block &block, unsigned number) {
    static Operand a, b;
    const Wgmma &w = product.lanes[0];
    const int size = bytes_of(w.a_type), depth = 32 / size, n = w.n;
    if (w.registers) // chunks of 4 bytes: (row / 8, k / half) tell the register, row % 8 and k the lane
        for (int row = 0; row < 16; ++row)
            for (int chunk = 0; chunk < 8; ++chunk) {
                const unsigned *word = &product.registers[row % 8 * 4 + chunk % 4][row / 8 + chunk / 4 * 2];
                widen(a.at[row] + chunk * 4 / size, 1, word, 4, w.a_type);
            }
    else
        fetch(a, block, w.a, number % 4 * 16, 16, size, w.a_transposed, w.a_type, "wgmma, a");
    fetch(b, block, w.b, 0, n, size, w.b_transposed, w.b_type, "wgmma, b");
    a.look(16, depth);
    b.look(n, depth);
    const auto place = [&](int row, int column) {
        const Wgmma &lane = product.lanes[row % 8 * 4 + column % 8 / 2];
        return (char *)lane.d + 4 * (column / 8 * 4 + row / 8 * 2 + column % 2);
    };
    if (!w.scale)
        for (int row = 0; row < 16; ++row)
            for (int column = 0; column < n; ++column) memset(place(row, column), 0, 4);
    if (w.a_type == S8 || w.a_type == U8) {
        for (int row = 0; row < 16; ++row)
            for (int column = 0; column < n && !a.zero[row]; ++column) {
                if (b.zero[column]) continue;
                float sum = 0; // exact: 32 products of 8 bits
                for (int k = 0; k < depth; ++k) sum += a.at[row][k] * b.at[column][k];
                *(unsigned *)place(row, column) += (unsigned)(int)sum;
            }
        return;
    }
    multiply_add(a, b, 16, n, depth, kept_bits(w.a_type),
                 [&](int row, int column) -> float & { return *(float *)place(row, column); });
}

namespace {
struct Rows {
    unsigned *registers;
    unsigned row;
};

// Four matrices: stmatrix.x4 if STORES, otherwise ldmatrix.x4.trans, which transposes them.
template <bool STORES> void move_matrices(void *const *lanes, unsigned) {
    const Rows *all[32];
    for (int i = 0; i < 32; ++i) all[i] = (const Rows *)lanes[i];
    for (int matrix = 0; matrix < 4; ++matrix)
        for (int r = 0; r < 8; ++r) {
            const unsigned address = all[matrix * 8 + r]->row;
            if (address % 16) machine_fail("ldmatrix or stmatrix: row %#x is not aligned to 16 bytes", address);
            char *row = shared_at(*current->block, address, 16, "ldmatrix or stmatrix");
            plain(*current->warp->lanes[matrix * 8 + r], address, 16, STORES ? Access::WRITE : Access::READ,
                  STORES ? "stmatrix" : "ldmatrix");
            for (int c = 0; c < 8; ++c) {
                const int lane = STORES ? r * 4 + c / 2 : c * 4 + r / 2, half = STORES ? c % 2 : r % 2;
                char *in = (char *)&all[lane]->registers[matrix] + half * 2;
                STORES ? memcpy(row + c * 2, in, 2) : memcpy(in, row + c * 2, 2);
            }
        }
}

struct Fragments {
    void *d;
    const void *a, *b;
    int m, k;
};

void multiply_doubles(void *const *lanes, unsigned) {
    const Fragments *all[32];
    for (int i = 0; i < 32; ++i) all[i] = (const Fragments *)lanes[i];
    const int m = all[0]->m, depth = all[0]->k;
    for (int row = 0; row < m; ++row)
        for (int column = 0; column < 8; ++column) {
            double &d = ((double *)all[row % 8 * 4 + column / 2]->d)[row / 8 * 2 + column % 2];
            for (int k = 0; k < depth; ++k) {
                const double x = ((const double *)all[row % 8 * 4 + k % 4]->a)[row / 8 + k / 4 * (m / 8)];
                const double y = ((const double *)all[column * 4 + k % 4]->b)[k / 4];
                d = std::fma(x, y, d);
            }
        }
}

void whole_warp(void *mine, Act *act, const char *name) {
    if (current->warp->exists != 0xFFFFFFFFu) machine_fail("%s by a warp that is not whole", name);
    machine_warp(0xFFFFFFFFu, mine, act, name);
}
} // namespace
} // namespace machine

using namespace machine;

void machine_ldmatrix_trans(unsigned *to, unsigned row) {
    Rows mine = {to, row};
    whole_warp(&mine, move_matrices<false>, "ldmatrix");
}

void machine_stmatrix(const unsigned *from, unsigned row) {
    Rows mine = {const_cast<unsigned *>(from), row};
    whole_warp(&mine, move_matrices<true>, "stmatrix");
}

void machine_mma_f64(double *d, const double *a, const double *b, int m, int k) {
    Fragments mine = {d, a, b, m, k};
    whole_warp(&mine, multiply_doubles, "mma.sync of f64");
}

void machine_wgmma(const Wgmma &product) {
    whole_warp(
        const_cast<Wgmma *>(&product),
        [](void *const *lanes, unsigned) {
            Warp &warp = *current->warp;
            if (!warp.fenced) machine_fail("wgmma without wgmma_fence since the last wait");
            Product p;
            const Wgmma &first = *(const Wgmma *)lanes[0];
            for (int i = 0; i < 32; ++i) {
                p.lanes[i] = *(const Wgmma *)lanes[i];
                const Wgmma &w = p.lanes[i];
                if (w.a != first.a || w.b != first.b || w.n != first.n || w.scale != first.scale ||
                    w.a_type != first.a_type || w.b_type != first.b_type)
                    machine_fail("wgmma: its lanes do not agree");
                if (w.registers) memcpy(p.registers[i], w.registers, 16);
            }
            if (watching) {
                const int size = bytes_of(first.a_type);
                if (!first.registers) watch(first.a, current->visible.warp % 4 * 16, 16, size, first.a_transposed);
                watch(first.b, 0, first.n, size, first.b_transposed);
            }
            if (happens_early() && warp.products.open.empty() && warp.products.committed.empty())
                multiply(p, *current->block, current->visible.warp);
            else
                warp.products.open.push_back(p);
        },
        "wgmma");
}

void machine_wgmma_fence() {
    whole_warp(nullptr, [](void *const *, unsigned) { current->warp->fenced = true; }, "wgmma_fence");
}

void machine_wgmma_commit() {
    whole_warp(
        nullptr, [](void *const *, unsigned) { current->warp->products.commit(), products_committed(); },
        "wgmma_commit");
}

void machine_wgmma_wait(int pending) {
    int count = pending;
    whole_warp(
        &count,
        [](void *const *lanes, unsigned) {
            Warp &warp = *current->warp;
            auto &groups = warp.products.committed;
            while ((int)groups.size() > *(const int *)lanes[0]) {
                for (const Product &p : groups.front()) multiply(p, *current->block, current->visible.warp);
                groups.pop_front();
            }
            warp.fenced = false;
            products_over(*(const int *)lanes[0]);
        },
        "wgmma_wait");
}

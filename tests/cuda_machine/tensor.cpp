// What a warp multiplies: ldmatrix, mma.sync, wgmma.
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

float element(const void *at, Type type) {
    uint32_t word = 0;
    memcpy(&word, at, (size_t)bytes_of(type));
    switch (type) {
    case F16:
        return tables().f16[word];
    case BF16:
        return from_bits(word << 16);
    case TF32:
        return from_bits(word & ~0x1FFFu);
    case E4M3:
        return tables().e4m3[word];
    case E5M2:
        return tables().e5m2[word];
    case S8:
        return (float)(int8_t)word;
    default:
        return (float)word;
    }
}

// acc + the sum of `count` products as Hopper's tensor cores do it, as far as is known: all addends are aligned to the
// largest one and cut to `kept` bits after its leading one, the sum is exact and cut to float (see the model of the
// tests of bounds). Otherwise: summed in double, rounded once to nearest.
float dot(float acc, const float *a, const float *b, int count, int kept) {
    double addends[33];
    addends[count] = acc;
    bool finite = std::isfinite(acc);
    for (int i = 0; i < count; ++i) {
        addends[i] = (double)a[i] * b[i];
        finite = finite && std::isfinite(addends[i]);
    }
    double sum = 0;
    if (!finite || !truncates()) {
        for (int i = count; i >= 0; --i) sum += addends[i];
        return (float)sum;
    }
    double largest = 0;
    for (int i = 0; i <= count; ++i) largest = std::max(largest, std::fabs(addends[i]));
    if (largest == 0) {
        for (int i = 0; i <= count; ++i) sum += addends[i];
        return (float)sum;
    }
    int exponent;
    std::frexp(largest, &exponent);
    const int unit = std::max(exponent - 1 - kept, -149 - 30); // all are multiples of 2^unit
    const double up = std::ldexp(1., -unit), down = std::ldexp(1., unit);
    for (int i = 0; i <= count; ++i) sum += std::trunc(addends[i] * up);
    sum *= down;
    const float nearest = (float)sum;
    if (std::isinf(nearest) || std::fabs((double)nearest) <= std::fabs(sum)) return nearest;
    return std::nextafter(nearest, 0.f);
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

} // namespace

// The rows of d that belong to one warp of a warpgroup.
void multiply(Warp &, const Product &product, Block &block, unsigned number) {
    const Wgmma &w = product.lanes[0];
    const int size = bytes_of(w.a_type), depth = 32 / size, n = w.n;
    const bool integers = w.a_type == S8 || w.a_type == U8;
    float a[16][32];
    static float b[256][32];
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < depth; ++k) {
            if (w.registers) { // chunks of 4 bytes: (row / 8, k / half) tell the register, row % 8 and k the lane
                const int per = 4 / size, chunk = k / per, lane = row % 8 * 4 + chunk % 4;
                const unsigned word = product.registers[lane][row / 8 + chunk / 4 * 2];
                a[row][k] = element((const char *)&word + k % per * size, w.a_type);
            } else {
                const unsigned at = described(w.a, number % 4 * 16 + (unsigned)row, (unsigned)k, size, w.a_transposed);
                a[row][k] = element(shared_at(block, at, (unsigned)size, "wgmma, a"), w.a_type);
            }
        }
    for (int column = 0; column < n; ++column)
        for (int k = 0; k < depth; ++k) {
            const unsigned at = described(w.b, (unsigned)column, (unsigned)k, size, w.b_transposed);
            b[column][k] = element(shared_at(block, at, (unsigned)size, "wgmma, b"), w.b_type);
        }
    for (int row = 0; row < 16; ++row)
        for (int column = 0; column < n; ++column) {
            const Wgmma &lane = product.lanes[row % 8 * 4 + column % 8 / 2];
            const int i = column / 8 * 4 + row / 8 * 2 + column % 2;
            if (integers) {
                float sum = 0; // exact: 32 products of 8 bits
                for (int k = 0; k < depth; ++k) sum += a[row][k] * b[column][k];
                unsigned &d = ((unsigned *)lane.d)[i];
                d = (w.scale ? d : 0) + (unsigned)(int)sum;
            } else {
                float &d = ((float *)lane.d)[i];
                d = dot(w.scale ? d : 0.f, a[row], b[column], depth, kept_bits(w.a_type));
            }
        }
}

namespace {
struct Rows { // ldmatrix, stmatrix
    unsigned *registers;
    unsigned row;
    int count;
};

template <bool TRANSPOSED, bool STORES> void move_matrices(void *const *lanes, unsigned) {
    const Rows *all[32];
    for (int i = 0; i < 32; ++i) all[i] = (const Rows *)lanes[i];
    for (int matrix = 0; matrix < all[0]->count; ++matrix)
        for (int r = 0; r < 8; ++r) {
            const unsigned address = all[matrix * 8 + r]->row;
            if (address % 16) machine_fail("ldmatrix or stmatrix: row %#x is not aligned to 16 bytes", address);
            char *row = shared_at(*current->block, address, 16, "ldmatrix or stmatrix");
            for (int c = 0; c < 8; ++c) {
                const int lane = TRANSPOSED ? c * 4 + r / 2 : r * 4 + c / 2, half = TRANSPOSED ? r % 2 : c % 2;
                char *in = (char *)&all[lane]->registers[matrix] + half * 2;
                STORES ? memcpy(row + c * 2, in, 2) : memcpy(in, row + c * 2, 2);
            }
        }
}

struct Fragments {
    void *d;
    const void *a, *b;
    Type type;
    int m, k;
};

void multiply_fragments(void *const *lanes, unsigned) {
    const Fragments *all[32];
    for (int i = 0; i < 32; ++i) all[i] = (const Fragments *)lanes[i];
    const Type type = all[0]->type;
    const int size = bytes_of(type), per = 4 / size, depth = 32 / size;
    float a[16][16], b[8][16];
    for (int k = 0; k < depth; ++k) {
        const int chunk = k / per;
        for (int row = 0; row < 16; ++row)
            a[row][k] =
                element((const char *)((const unsigned *)all[row % 8 * 4 + chunk % 4]->a + row / 8 + chunk / 4 * 2) +
                            k % per * size,
                        type);
        for (int column = 0; column < 8; ++column)
            b[column][k] = element(
                (const char *)((const unsigned *)all[column * 4 + chunk % 4]->b + chunk / 4) + k % per * size, type);
    }
    for (int row = 0; row < 16; ++row)
        for (int column = 0; column < 8; ++column) {
            float &d = ((float *)all[row % 8 * 4 + column / 2]->d)[row / 8 * 2 + column % 2];
            d = dot(d, a[row], b[column], depth, kept_bits(type));
        }
}

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

void machine_ldmatrix(unsigned *to, unsigned row, int count, bool transposed) {
    Rows mine = {to, row, count};
    whole_warp(&mine, transposed ? move_matrices<true, false> : move_matrices<false, false>, "ldmatrix");
}

void machine_stmatrix(const unsigned *from, unsigned row, int count, bool transposed) {
    Rows mine = {const_cast<unsigned *>(from), row, count};
    whole_warp(&mine, transposed ? move_matrices<true, true> : move_matrices<false, true>, "stmatrix");
}

void machine_mma(float *d, const unsigned *a, const unsigned *b, Type type) {
    Fragments mine = {d, a, b, type, 16, 0};
    whole_warp(&mine, multiply_fragments, "mma.sync");
}

void machine_mma_f64(double *d, const double *a, const double *b, int m, int k) {
    Fragments mine = {d, a, b, F64, m, k};
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
            if (happens_early() && warp.products.open.empty() && warp.products.committed.empty())
                multiply(warp, p, *current->block, current->visible.warp);
            else
                warp.products.open.push_back(p);
        },
        "wgmma");
}

void machine_wgmma_fence() {
    whole_warp(nullptr, [](void *const *, unsigned) { current->warp->fenced = true; }, "wgmma_fence");
}

void machine_wgmma_commit() {
    whole_warp(nullptr, [](void *const *, unsigned) { current->warp->products.commit(); }, "wgmma_commit");
}

void machine_wgmma_wait(int pending) {
    int count = pending;
    whole_warp(
        &count,
        [](void *const *lanes, unsigned) {
            Warp &warp = *current->warp;
            auto &groups = warp.products.committed;
            while ((int)groups.size() > *(const int *)lanes[0]) {
                for (const Product &p : groups.front()) multiply(warp, p, *current->block, current->visible.warp);
                groups.pop_front();
            }
            warp.fenced = false;
        },
        "wgmma_wait");
}

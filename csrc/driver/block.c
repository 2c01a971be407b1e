/* Cache blocking: chooses block sizes and which operands to pack, packs them, and runs the loops around a kernel. All
 * arithmetic is in the kernels. */
#include "driver.h"

#include <string.h>

int64_t gemm_depth(const gemm_plan *plan) {
    return plan->k <= plan->kc ? plan->k : equal_pieces(plan->k, plan->kc, plan->kernel->k_group);
}

int64_t gemm_prepacked_bytes(const gemm_plan *plan) {
    const gemm_kernel *kernel = plan->kernel;
    const int64_t kc = gemm_depth(plan), whole = kc ? plan->k / kc : 0, rest = plan->k - whole * kc;
    const int64_t depth = whole * round_up(kc, kernel->k_group) + round_up(rest, kernel->k_group);
    return round_up(depth * round_up(plan->n, kernel->nr) * kernel->b_packed, GEMM_ALIGNMENT) + GEMM_ALIGNMENT;
}

void gemm_prepack(const gemm_plan *plan, const void *b, void *to) {
    const gemm_kernel *kernel = plan->kernel;
    const int64_t kc = gemm_depth(plan), n = round_up(plan->n, kernel->nr);
    for (int64_t p = 0; p < plan->k; p += kc) {
        char *panels = (char *)to + p * n * kernel->b_packed; /* p is a multiple of k_group: no padding precedes it */
        const void *from = gemm_at(b, p * plan->b.row, kernel->b_size);
        kernel->pack_b(panels, from, plan->b.column, plan->b.row, plan->n, min64(kc, plan->k - p), kernel->nr);
    }
}

/* Up to this number of rows of a, b is packed only if reading it in place is slow. */
enum { MANY_ROWS = 192 };

/* Whether to pack an a whose rows are not contiguous (a_cs is not 1). A tile then uses only a part of each cache line,
 * and few of those lines stay in the cache until the next tile uses their next part. Packing pays if a is read often.
 * It is read once for every NR columns of C. Packing pays earlier if the lines for successive steps along k are
 * distant. Measured with AVX2 on Zen 3. */
static int packs_rows(const gemm_kernel *kernel, int64_t m, int64_t n, int64_t k, int64_t a_cs) {
    enum { FEW_READS = 4, FEW_DISTANT_READS = 2, DISTANT = 384, SMALL_A = 16 << 10 }; /* the last two in bytes */
    const int64_t apart = (a_cs < 0 ? -a_cs : a_cs) * kernel->a_size;
    const int64_t reads = apart < DISTANT ? FEW_READS : FEW_DISTANT_READS;
    return a_cs != 1 && k > 1 && n > reads * kernel->nr && k * m * kernel->a_size > SMALL_A;
}

/* Decides whether to pack a and b. Packing costs one pass over the operand. In return, the kernel reads short, aligned,
 * contiguous rows, instead of cache lines that are far apart. If their distance is a power of two, few of these lines
 * stay in the cache. The constants were measured with AVX2 on Zen 3 and with AVX-512 on Sapphire Rapids. */
static void choose_packing(gemm_blocking *blocking, const gemm_plan *plan, const gemm_subproblem *whole, int64_t m,
                           int64_t n) {
    enum {
        /* b is packed if it has more than SMALL_B bytes and is read for more than MANY_ROWS rows. With GEMM_FAST_PANELS,
         * b of any size is packed if it is read more than FEW_PASSES times (once per row of tiles). */
        SMALL_B = 200 << 10,
        FEW_PASSES = 5,
        /* a is packed if n >= WIDE, m >= FEW_ROWS, and its m rows have more than SMALL_A bytes over all of k. */
        SMALL_A = 256 << 10,
        WIDE = 200,
        FEW_ROWS = 96,
        /* The L1 cache of most CPUs. A line has LINE bytes. Lines whose distance is a multiple of SETS lines share one
         * set, and a set holds WAYS lines or a few more. */
        LINE = 64,
        SETS = 64,
        WAYS = 8,
        CROWDED_ROWS = 12 /* for so few rows, packing costs more than slow reads if all lines share one set */
    };
    const gemm_kernel *kernel = blocking->kernel;
    const int64_t k = blocking->kc;
    const int dots = reads_columns(kernel, m, plan->k, whole->b_rs);
    const int contiguous = (kernel->flags & GEMM_UNPACKED_B) && (whole->b_cs == 1 || n == 1);
    const int panels = (kernel->flags & GEMM_FAST_PANELS) && n >= kernel->nr;
    const int large_b = panels ? m > FEW_PASSES * kernel->mr : m > MANY_ROWS && k * n * kernel->b_size > SMALL_B;
    /* shared: the largest power of two, at most SETS, that divides the distance between rows of b in cache lines. Lines
     * at the same position of all rows then map to only SETS / shared sets. If k lines do not fit these sets, each row of
     * tiles reads them from L2 again. */
    const int64_t step = whole->b_rs * kernel->b_size, shared = min64(step / LINE & -(step / LINE), SETS);
    const int collide = step % LINE == 0 && m * shared > CROWDED_ROWS * SETS && k * shared > WAYS * SETS;
    blocking->pack_b = k && !whole->prepacked && (!(dots || contiguous) || large_b || collide);
    const int by_columns = !panels && !dots && packs_rows(kernel, m, n, k, whole->a_cs);
    const int large_a = n >= WIDE && m >= FEW_ROWS && plan->k * m * kernel->a_size > SMALL_A;
    const int match_b = panels && (blocking->pack_b || whole->prepacked);
    blocking->pack_a = k && (by_columns || large_a || match_b);
    /* Two kinds of kernel cannot combine a packed operand with an unpacked one: kernels that convert elements while they
     * pack, and kernels that cannot read an unpacked a, except in dot products. */
    const int packed_only = !(kernel->flags & GEMM_UNPACKED_A), converts = kernel->a_packed != kernel->a_size;
    if (packed_only)
        blocking->pack_a = k && (blocking->pack_b || whole->prepacked);
    else if (converts && (blocking->pack_a || whole->prepacked || blocking->pack_b))
        blocking->pack_a = k > 0, blocking->pack_b = k && !whole->prepacked;
}

/* The number of panels of b, of `panel` bytes each, to pack at a time if the rows of b are contiguous: those of a piece
 * of a row, so that the hardware prefetchers are fast. The panels must not fill more than half of a thread's share of
 * L2. For few rows of a, which read each panel soon after it was packed, there are at most FEW_PANELS. */
static int64_t panels_of_row(const gemm_kernel *kernel, int64_t m, int64_t panel) {
    enum { FEW_PANELS = 4 };
    const gemm_caches caches = gemm_get_caches();
    const int64_t fitting = caches.size[1] / caches.shared[1] / 2 / panel;
    const int64_t of_piece = GEMM_PIECE_OF_ROW / (kernel->nr * kernel->b_size);
    const int64_t most = min64(min64(fitting, of_piece), m <= MANY_ROWS ? FEW_PANELS : of_piece);
    return most > 1 ? most : 1;
}

/* The length of the pieces of k if b is not packed. The tiles read a few columns of b, row by row. If the rows are a
 * multiple of PERIOD bytes apart, they share few sets of L2, which hold few of them until the next tile reads them
 * again. Measured with AVX-512 on Sapphire Rapids. */
static int64_t piece_of_unpacked(const gemm_kernel *kernel, int64_t k, int64_t b_rs) {
    enum { FEW_STEPS = 768, STEPS = 256, PERIOD = 4096 };
    return k <= FEW_STEPS || b_rs * kernel->b_size % PERIOD ? k : equal_pieces(k, STEPS, kernel->k_group);
}

void gemm_choose_blocking(gemm_blocking *blocking, const gemm_plan *plan, const gemm_subproblem *whole, int64_t m,
                          int64_t n) {
    const gemm_kernel *kernel = plan->kernel;
    blocking->kernel = kernel, blocking->kc = gemm_depth(plan), blocking->stripe = m, blocking->panels = 1;
    /* sums may be split over k only if the product has one row: a job with one row of several must not split them, or
     * bits would depend on the number of jobs */
    blocking->ordered = plan->ordered || whole->m > 1;
    blocking->a_bytes = blocking->b_bytes = blocking->sums_bytes = blocking->tile_bytes = blocking->bytes = 0;
    choose_packing(blocking, plan, whole, m, n);
    if (m <= few_rows(kernel) && !blocking->pack_a && !blocking->pack_b && !whole->prepacked)
        blocking->kc = plan->k; /* for few rows, kernels do their own cache blocking */
    else if (!blocking->pack_b && !whole->prepacked)
        blocking->kc = min64(blocking->kc, piece_of_unpacked(kernel, plan->k, whole->b_rs));
    const int scattered = (whole->out_cs != 1 && n > 1) || (whole->c && whole->c_cs != 1 && n > 1);
    blocking->direct =
        !blocking->pack_a && !blocking->pack_b && !whole->prepacked && !scattered && blocking->kc == plan->k;
    if (blocking->direct) return;
    const int64_t depth = round_up(blocking->kc, kernel->k_group);
    const int raw = blocking->kc < plan->k;
    /* Up to 2 * mc rows are one block: each panel of b is then packed and used once, and never leaves the L1 cache. On
     * Zen 3, this is 2 % faster than two blocks, although a's block then has most of L2. */
    blocking->mc = m <= 2 * plan->mc ? round_up(m, kernel->mr) : equal_pieces(m, plan->mc, kernel->mr);
    blocking->nc = equal_pieces(n, plan->nc, kernel->nr);
    if (raw && (whole->c == whole->out || kernel->sum_size != kernel->c_size || whole->out_cs != 1)) {
        blocking->stripe =
            min64(m, 8 * blocking->mc); /* limits the workspace; packing b again after 8 blocks of rows costs little */
        blocking->sums_bytes = round_up(blocking->stripe * blocking->nc * kernel->sum_size, GEMM_ALIGNMENT);
    }
    if (blocking->pack_a) /* with slack for stores beyond the last panel: see pack.h */
        blocking->a_bytes = round_up(blocking->mc * depth * kernel->a_packed, GEMM_ALIGNMENT) + GEMM_ALIGNMENT;
    /* With a short k, the kernels of tile.h compute C by rows, which should be long. The workspace should still fit the
     * stack. */
    enum { BYTES_OF_B = 15 << 10 };
    const int64_t panel = kernel->nr * depth * kernel->b_packed;
    if (plan->k > 0 && plan->k <= GEMM_SHORT_K && n > kernel->nr)
        blocking->panels = panel < BYTES_OF_B ? BYTES_OF_B / panel : 1;
    else if (blocking->pack_b && whole->b_cs == 1)
        blocking->panels = panels_of_row(kernel, m, panel);
    /* If b is used by one block of rows only, b_panels holds `panels` panels at a time, which stay in the fast
     * caches. */
    blocking->single_use = m <= blocking->mc;
    const int64_t kept = blocking->single_use ? min64(kernel->nr * blocking->panels, blocking->nc) : blocking->nc;
    if (blocking->pack_b)
        blocking->b_bytes = round_up(kept * depth * kernel->b_packed, GEMM_ALIGNMENT) + GEMM_ALIGNMENT;
    if (scattered) {
        /* few rows get many columns: the loops of a kernel over a few rows are fast only if the rows are long */
        enum { BYTES = 4096 };
        const int64_t rows = min64(m, blocking->mc), row = kernel->nr * kernel->c_size;
        blocking->tile_columns = (rows * row < BYTES ? BYTES / (rows * row) : 1) * kernel->nr;
        blocking->tile_bytes = 2 * round_up(rows * blocking->tile_columns * kernel->c_size, GEMM_ALIGNMENT);
    }
    blocking->bytes = blocking->a_bytes + blocking->b_bytes + blocking->sums_bytes + blocking->tile_bytes;
}

/* Copies an m x n matrix. `size` is the number of bytes per element, 1 to 16. Strides are in elements. */
static void copy(char *to, int64_t to_rs, int64_t to_cs, const char *from, int64_t from_rs, int64_t from_cs, int64_t m,
                 int64_t n, int64_t size) {
#define COPY(bytes)                                                                                      \
    for (int64_t i = 0; i < m; i++)                                                                      \
        for (int64_t j = 0; j < n; j++)                                                                  \
            memcpy(to + (i * to_rs + j * to_cs) * (bytes), from + (i * from_rs + j * from_cs) * (bytes), \
                   (size_t)(bytes));
    switch (size) { /* a copy of constant size is a load and a store; a copy of variable size is a function call */
    case 1:
        COPY(1) break;
    case 2:
        COPY(2) break;
    case 4:
        COPY(4) break;
    case 8:
        COPY(8) break;
    default:
        COPY(size)
    }
#undef COPY
}

/* Computes a block for an out or c whose rows are not contiguous (out_cs or c_cs is not 1). The kernel works on small
 * copies of out and c with contiguous rows, blocking->tile_columns columns at a time. */
static void compute_scattered(const gemm_blocking *blocking, const gemm_block *block, const gemm_subproblem *sub,
                              int64_t i, int64_t j, char *tile) {
    const gemm_kernel *kernel = blocking->kernel;
    const int64_t size = kernel->c_size, columns = blocking->tile_columns;
    char *addend = tile + blocking->tile_bytes / 2;
    for (int64_t j0 = 0; j0 < block->n; j0 += columns) {
        gemm_block piece = *block;
        piece.n = min64(columns, block->n - j0);
        piece.b = gemm_at(block->b, j0 / kernel->nr * block->b_ts, block->panels ? kernel->b_packed : kernel->b_size);
        piece.from = gemm_at(block->from, j0, kernel->sum_size);
        if (block->c) {
            copy(addend, columns, 1, gemm_at(sub->c, i * sub->c_rs + (j + j0) * sub->c_cs, size), sub->c_rs, sub->c_cs,
                 block->m, piece.n, size);
            piece.c = addend, piece.c_rs = columns;
        }
        piece.to = tile, piece.to_rs = columns;
        kernel->compute(&piece);
        copy((char *)gemm_at(sub->out, i * sub->out_rs + (j + j0) * sub->out_cs, size), sub->out_rs, sub->out_cs, tile,
             columns, 1, block->m, piece.n, size);
    }
}

/* The state of the five nested loops, each of which is a function. From the outermost to the innermost: columns of C by
 * nc, rows by stripes, k by kc, rows by mc, columns by panels. */
typedef struct {
    const gemm_subproblem *sub;
    const gemm_blocking *blocking;
    char *a_panels, *b_panels, *sums, *tile; /* the parts of the workspace */
    int64_t j0, n;                           /* first column, and number of columns, of the block of columns */
    int64_t s0, s1;                          /* first row of the stripe, and the row after its last row */
    /* the raw sums that one block of k passes to the next; raw[i - s0, j - j0] belongs to element (i, j) of C */
    char *raw;
    int64_t raw_rs;
    int64_t p0, k, depth; /* first k, length along k, and this length rounded up to a multiple of k_group */
    int64_t i0;           /* first row of the block of rows */
} position;

/* Sets the b of a kernel call to `columns` columns of b from column j0 + j on. If `packing`, packs them first. */
static void set_b(gemm_block *block, const position *at, int64_t j, int64_t columns, int packing) {
    const gemm_subproblem *x = at->sub;
    const gemm_blocking *blocking = at->blocking;
    const gemm_kernel *kernel = blocking->kernel;
    const void *b = gemm_at(x->b, at->p0 * x->b_rs + (at->j0 + j) * x->b_cs, kernel->b_size);
    block->n = columns;
    block->panels = x->prepacked || blocking->pack_b;
    if (x->prepacked) {
        const int64_t first = at->p0 * x->prepacked_n + (x->prepacked_column + at->j0 + j) * at->depth;
        block->b = gemm_at(x->prepacked, first, kernel->b_packed);
    } else if (blocking->pack_b) {
        char *panel = at->b_panels + (blocking->single_use ? 0 : j * at->depth * kernel->b_packed);
        if (packing) kernel->pack_b(panel, b, x->b_cs, x->b_rs, columns, at->k, kernel->nr);
        block->b = panel;
    } else {
        block->b = b, block->b_ps = x->b_rs, block->b_cs = x->n == 1 ? 1 : x->b_cs;
        block->b_ts = kernel->nr * block->b_cs;
    }
    if (block->panels) block->b_ps = kernel->nr, block->b_cs = 1, block->b_ts = kernel->nr * at->depth;
}

/* Calls the kernel for all columns of a block of rows. For the first block of rows of a stripe, b is packed just before
 * the kernel reads it, blocking->panels panels at a time, so that the panels are still in the cache. */
static void loop_over_columns(gemm_block *block, const position *at) {
    const gemm_subproblem *x = at->sub;
    const gemm_blocking *blocking = at->blocking;
    const gemm_kernel *kernel = blocking->kernel;
    const int first = at->p0 == 0, last = !block->raw, packing = blocking->pack_b && at->i0 == at->s0;
    for (int64_t j = 0, columns; j < at->n; j += columns) {
        columns = packing ? min64(kernel->nr * blocking->panels, at->n - j) : at->n;
        set_b(block, at, j, columns, packing);
        char *raw = (char *)gemm_at(at->raw, (at->i0 - at->s0) * at->raw_rs + j, kernel->sum_size);
        block->from = first && !x->accumulate ? NULL : raw;
        block->to = raw;
        if (last) {
            block->to = (void *)gemm_at(x->out, at->i0 * x->out_rs + (at->j0 + j) * x->out_cs, kernel->c_size);
            block->c = gemm_at(x->c, at->i0 * x->c_rs + (at->j0 + j) * x->c_cs, kernel->c_size);
        }
        if (last && blocking->tile_bytes)
            compute_scattered(blocking, block, x, at->i0, at->j0 + j, at->tile);
        else
            kernel->compute(block);
    }
}

static void loop_over_rows(position *at) {
    const gemm_subproblem *x = at->sub;
    const gemm_blocking *blocking = at->blocking;
    const gemm_kernel *kernel = blocking->kernel;
    const int last = at->p0 + at->k == x->k;
    for (at->i0 = at->s0; at->i0 < at->s1; at->i0 += blocking->mc) {
        gemm_block block = {
            .m = min64(blocking->mc, at->s1 - at->i0), .k = at->k, .ordered = blocking->ordered, .raw = !last};
        block.alpha = x->alpha, block.beta = x->beta;
        block.from_rs = at->raw_rs, block.c_rs = x->c_rs, block.to_rs = last ? x->out_rs : at->raw_rs;
        const void *a = gemm_at(x->a, at->i0 * x->a_rs + at->p0 * x->a_cs, kernel->a_size);
        if (blocking->pack_a) {
            kernel->pack_a(at->a_panels, a, x->a_rs, x->a_cs, block.m, at->k, kernel->mr);
            block.a = at->a_panels, block.a_rs = 1, block.a_ps = kernel->mr, block.a_ts = kernel->mr * at->depth;
        } else {
            block.a = a, block.a_rs = x->a_rs, block.a_ps = x->a_cs, block.a_ts = kernel->mr * x->a_rs;
        }
        loop_over_columns(&block, at);
    }
}

static void loop_over_k(position *at) {
    const gemm_blocking *blocking = at->blocking;
    at->p0 = 0;
    do { /* also runs once for k = 0 */
        at->k = min64(blocking->kc, at->sub->k - at->p0), at->depth = round_up(at->k, blocking->kernel->k_group);
        loop_over_rows(at);
        at->p0 += at->k;
    } while (at->p0 < at->sub->k);
}

static void loop_over_stripes(position *at) {
    const gemm_subproblem *x = at->sub;
    const gemm_blocking *blocking = at->blocking;
    for (at->s0 = 0; at->s0 < x->m; at->s0 += blocking->stripe) {
        at->s1 = min64(at->s0 + blocking->stripe, x->m);
        at->raw = at->sums;
        if (!blocking->sums_bytes)
            at->raw = (char *)gemm_at(x->out, at->s0 * x->out_rs + at->j0, blocking->kernel->c_size);
        loop_over_k(at);
    }
}

static void loop_over_column_blocks(const gemm_subproblem *x, const gemm_blocking *blocking, char *workspace) {
    position at = {.sub = x, .blocking = blocking, .a_panels = workspace, .b_panels = workspace + blocking->a_bytes};
    at.sums = at.b_panels + blocking->b_bytes, at.tile = at.sums + blocking->sums_bytes;
    at.raw_rs = blocking->sums_bytes ? blocking->nc : x->out_rs;
    for (at.j0 = 0; at.j0 < x->n; at.j0 += blocking->nc) {
        at.n = min64(blocking->nc, x->n - at.j0);
        loop_over_stripes(&at);
    }
}

gemm_block gemm_block_of(const gemm_subproblem *x, const gemm_blocking *blocking) {
    gemm_block block = {
        .m = x->m, .n = x->n, .k = x->k, .alpha = x->alpha, .beta = x->beta, .ordered = blocking->ordered};
    block.a = x->a, block.a_rs = x->a_rs, block.a_ps = x->a_cs, block.a_ts = blocking->kernel->mr * x->a_rs;
    block.b = x->b, block.b_ps = x->b_rs, block.b_cs = x->n == 1 ? 1 : x->b_cs, block.b_ts = blocking->kernel->nr;
    block.c = x->c, block.c_rs = x->c_rs, block.to = x->out, block.to_rs = x->out_rs;
    if (x->accumulate) block.from = x->out, block.from_rs = x->out_rs;
    return block;
}

void gemm_compute(const gemm_subproblem *sub, const gemm_blocking *blocking, char *workspace) {
    if (blocking->direct) {
        const gemm_block block = gemm_block_of(sub, blocking);
        blocking->kernel->compute(&block);
    } else {
        loop_over_column_blocks(sub, blocking, workspace);
    }
}

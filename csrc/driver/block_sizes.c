/* The sizes of the cache blocks of a product, MC, KC and NC, derived from the sizes of the caches.
 *
 * The loops of block.c reuse a panel of b (KC x NR) for all tiles of a block of MC rows, a block of a (MC x KC) for all
 * panels of b, and a block of b (KC x NC) for all blocks of rows. The panel should be in the L1 cache, the block of a in
 * L2, the block of b in L3. The rule estimates the clock cycles of one step along k of one tile (MR x NR):
 *
 *     cycles(KC) = fma + stall + c / KC + b / MC
 *
 *   fma      the multiply-adds of the step: FMA_RATE vectors per cycle
 *   stall    The step reads MR elements of a from L2, and NR elements of b from L1 if the panel fits L1, else from L2.
 *            The core hides these reads if L2 can deliver them in a part of the time `fma`: in HIDDEN * fma. `stall` is
 *            the time that exceeds this part. If the panel fits L1, there is no stall.
 *   c / KC   Once in KC steps, a tile of C is read and written. It comes from L2 or L3.
 *   b / MC   Once in MC rows (in MC / MR tiles), a panel of b comes from L3. Prefetching hides most of this time.
 *
 * Half of L2 holds the block of a, the current panel of b and the next one. The other half is for C and for the matrices
 * that are being packed. With L2 as the number of bytes of L2 that a thread may use, and A and B as bytes per element of
 * a and b:
 *
 *     MC = (L2 / 2 - 2 * KC * NR * B) / (KC * A)
 *
 * For this MC, c / KC + b / MC is least if KC = h / (w + sqrt(b * h / c)) with h = L2 / 2 / A and w = 2 * NR * B / A. The
 * rule compares this KC with the largest KC whose panel fits L1. For each, it tries the two numbers of equal pieces of k
 * that are nearest.
 *
 * The part of L1 for the panel follows Low et al., "Analytical Modeling Is Enough for High-Performance BLIS" (2016): one
 * of the cache's ways is for C. The panel of b and the panels of a share the others in the proportion NR * B : MR * A,
 * the bytes of each that a step reads.
 *
 * NC: the block of b fills half of a thread's share of L3, but at most MOST_B bytes. It has at least LEAST_NC and at most
 * MOST_NC columns. */
#include "driver.h"

#include <math.h>

enum {
    FMA_RATE = 2,     /* vectors per cycle: the two FMA units of most CPUs */
    L2_RATE = 32,     /* bytes per cycle that L2 delivers while the core computes; data sheets give 32 to 64 */
    C_RATE = 8,       /* bytes of C per cycle, with the start and the end of a tile's loop; measured, see docs/cpu.md */
    B_RATE = 64,      /* bytes of b per cycle; L3 delivers about 16, but prefetching hides three quarters of the time */
    LEAST_NC = 1024,  /* packing an element of a takes as long as 12 multiply-adds: 1 % of this many columns */
    MOST_NC = 4096,   /* more columns would save less than 0.3 % and need a larger workspace */
    MOST_B = 4 << 20, /* as many pages of 4 KiB as the second TLB of small CPUs has entries, 1024 */
    MOST_MC = 128,    /* more rows of C would be on far more pages than the first TLB has entries, 64 to 96 */
    MOST_KC = 768,    /* of longer panels, little stays in L1 between tiles; measured, see docs/cpu.md */
    LINE = 64,        /* bytes of a cache line */
    STEP = 8          /* KC is a multiple of STEP and of k_group */
};
static const double HIDDEN = 2. / 3; /* measured: 0.58 is hidden (6 x 8 doubles), 0.73 is not (6 x 64 floats) */

typedef struct model {
    double fma, stall, c, b; /* in cycles; see above */
    double h, w;             /* MC = h / KC - w */
    int64_t in_l1;           /* the largest KC whose panel of b fits L1 */
    int64_t most_mc;
} model;

static model model_of(const gemm_kernel *kernel, const gemm_caches *caches) {
    const double mr = kernel->mr, nr = kernel->nr, tile = mr * nr * kernel->sum_size;
    /* A vector has 32 bytes, unless the tile then needed more than 16 registers. For 16-byte vectors, `fma` is too
     * short. This does no harm: no such kernel reads so many bytes per step that the rule would expect a stall. */
    const double vector = tile > 16 * 32 ? 64 : 32, factors = kernel->flags & GEMM_COMPLEX ? 2 : 1;
    const double a = mr * kernel->a_packed, b = nr * kernel->b_packed;
    const double l1 = (double)caches->size[0], l2 = (double)(caches->size[1] / caches->shared[1]);
    const double ways = fmax(floor((caches->l1_ways - 1) * b / (a + b)), 1);
    model x = {.fma = factors * tile / (vector * FMA_RATE * kernel->k_group)};
    x.stall = fmax((a + b) / L2_RATE - HIDDEN * x.fma, 0);
    x.c = 2 * tile / C_RATE;
    x.b = b * mr / B_RATE;
    x.h = l2 / 2 / kernel->a_packed, x.w = 2 * b / kernel->a_packed;
    x.in_l1 = (int64_t)(l1 * ways / caches->l1_ways / b);
    /* Two neighbouring tiles may share a line of C. It stays in L1 until the second tile if C's column of lines, one for
     * each row, fits a quarter of L1. Each row may also be on a page of its own: few of them fit the first TLB. */
    x.most_mc = min64(caches->size[0] / 4 / LINE, MOST_MC);
    return x;
}

static int64_t mc_of(const model *x, int64_t kc, int64_t mr) {
    const int64_t rows = min64((int64_t)(x->h / (double)kc - x->w), x->most_mc);
    return rows < mr ? mr : rows / mr * mr;
}

static double cycles(const model *x, int64_t kc, int64_t mr) {
    return x->fma + (kc > x->in_l1 ? x->stall : 0) + x->c / (double)kc + x->b / (double)mc_of(x, kc, mr);
}

/* Returns the better one of the two lengths of equal pieces of k that are nearest to `wanted`, but at most MOST_KC. */
static int64_t piece(const model *x, int64_t k, int64_t wanted, int64_t unit, int64_t mr) {
    const int64_t count = ceil_div(k, wanted < unit ? unit : wanted);
    const int64_t shorter = round_up(ceil_div(k, count), unit);
    const int64_t longer = count > 1 ? round_up(ceil_div(k, count - 1), unit) : shorter;
    return longer <= MOST_KC && cycles(x, longer, mr) < cycles(x, shorter, mr) ? longer : shorter;
}

void gemm_block_sizes(const gemm_kernel *kernel, const gemm_caches *caches, int64_t k, int64_t sizes[3]) {
    const int64_t unit = kernel->k_group > STEP ? kernel->k_group : STEP, mr = kernel->mr;
    const model x = model_of(kernel, caches);
    const int64_t best = min64((int64_t)(x.h / (x.w + sqrt(x.b * x.h / x.c))), MOST_KC);
    const int64_t far = piece(&x, k, best, unit, mr), near = piece(&x, k, min64(best, x.in_l1), unit, mr);
    const int64_t kc = cycles(&x, near, mr) < cycles(&x, far, mr) ? near : far;
    const int last = caches->size[2] ? 2 : 1; /* without L3, the block of b is partly in L2, partly in memory */
    const int64_t columns = min64(caches->size[last] / caches->shared[last] / 2, MOST_B) / (kc * kernel->b_packed);
    sizes[0] = mc_of(&x, kc, mr);
    sizes[1] = kc;
    sizes[2] = round_up(columns < LEAST_NC ? LEAST_NC : min64(columns, MOST_NC), kernel->nr);
}

int gemm_panel_fits(const gemm_kernel *kernel, int64_t kc) {
    const gemm_caches caches = gemm_get_caches();
    return kc <= model_of(kernel, &caches).in_l1;
}

void gemm_set_blocks(gemm_plan *plan) {
    /* gemm_block_sizes takes 0.1 to 0.2 us, as long as a small product. It is not called for up to FEW steps and LEAST_NC
     * columns: it would then choose one piece of k and one block of columns, as the sizes below do, and MC hardly
     * matters, because FEW x FEW elements of a fit half of the smallest L2. m is unknown when b is packed in advance. */
    enum { FEW = 64 };
    if (plan->mc && plan->kc && plan->nc) return;
    const gemm_kernel *kernel = plan->kernel;
    const int64_t k = plan->k > 0 ? plan->k : 1;
    int64_t sizes[3] = {round_up(FEW, kernel->mr), round_up(k, kernel->k_group), round_up(LEAST_NC, kernel->nr)};
    if (k > FEW || plan->n > LEAST_NC) {
        const gemm_caches caches = gemm_get_caches();
        gemm_block_sizes(kernel, &caches, k, sizes);
    }
    if (!plan->mc) plan->mc = sizes[0];
    if (!plan->kc) plan->kc = sizes[1];
    if (!plan->nc) plan->nc = sizes[2];
}

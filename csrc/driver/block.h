/* The template of block.c: packing, tiles and the five loops for elements of type T. No guard: included twice.
 * Elements are only moved here; all arithmetic is the kernel's. */

/* A matrix at p; p == NULL: absent. */
typedef struct NAME(view) {
    T *p;
    int64_t rs, cs;
} NAME(view);

static T *NAME(at)(NAME(view) x, int64_t i, int64_t j) {
    return x.p + i * x.rs + j * x.cs;
}

/* Packs `rows` x `k` elements at x[row * rs + p * ps] into panels of `width` rows, each panel by p; rows that miss
 * in the last panel become zero. Serves a, whose rows are C's rows, and b, whose "rows" are C's columns. */
static void NAME(pack)(T *to, const T *x, int64_t rs, int64_t ps, int64_t rows, int64_t k, int64_t width) {
    for (int64_t first = 0; first < rows; first += width, to += width * k) {
        const int64_t count = min64(width, rows - first);
        if (rs == 1) { /* along the rows of memory */
            for (int64_t p = 0; p < k; p++) {
                const T *from = x + first + p * ps;
                T *row = to + p * width;
                int64_t i = 0;
                for (; i + 4 <= count; i += 4) memcpy(row + i, from + i, 4 * sizeof(T));
                for (; i < count; i++) row[i] = from[i];
                for (; i < width; i++) row[i] = 0;
            }
            continue;
        }
        int64_t i = 0;
        for (; i + 4 <= count; i += 4) { /* transposing four rows a pass: few enough streams for caches and TLB */
            const T *from = x + (first + i) * rs;
            for (int64_t p = 0; p < k; p++)
                for (int row = 0; row < 4; row++) to[p * width + i + row] = from[row * rs + p * ps];
        }
        for (; i < count; i++)
            for (int64_t p = 0; p < k; p++) to[p * width + i] = x[(first + i) * rs + p * ps];
        for (; i < width; i++)
            for (int64_t p = 0; p < k; p++) to[p * width + i] = 0;
    }
}

static void NAME(copy)(NAME(view) to, NAME(view) from, int64_t m, int64_t n) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) *NAME(at)(to, i, j) = *NAME(at)(from, i, j);
}

/* One tile of m x n valid elements; whole tiles of adjacent columns go straight to memory. */
static void NAME(tile)(const gemm_kernel *kernel, int64_t m, int64_t n, int64_t k, const T *a, const T *b,
                       NAME(view) from, NAME(view) c, NAME(view) to, double alpha, double beta) {
    gemm_tile tile = {from.p, c.p, to.p, from.rs, c.rs, to.rs, alpha, beta};
    const int whole = m == kernel->mr && n == kernel->nr;
    if (whole && to.cs == 1 && (!from.p || from.cs == 1) && (!c.p || c.cs == 1)) {
        kernel->function(k, a, b, &tile);
        return;
    }
    T sums[GEMM_TILE_BYTES / sizeof(T)], addend[GEMM_TILE_BYTES / sizeof(T)];
    const NAME(view) small = {sums, kernel->nr, 1}, small_c = {addend, kernel->nr, 1};
    const size_t bytes = sizeof(T) * (size_t)(kernel->mr * kernel->nr);
    if (from.p) {
        memset(sums, 0, bytes);
        NAME(copy)(small, from, m, n);
        tile.from = sums;
    }
    if (c.p) {
        memset(addend, 0, bytes);
        NAME(copy)(small_c, c, m, n);
        tile.c = addend;
    }
    tile.to = sums;
    tile.from_rs = tile.c_rs = tile.to_rs = kernel->nr;
    kernel->function(k, a, b, &tile);
    NAME(copy)(to, small, m, n);
}

void NAME(gemm_block)(const gemm_block *x, const gemm_blocking *cut, char *workspace) {
    const gemm_kernel *kernel = cut->kernel;
    const int64_t mr = kernel->mr, nr = kernel->nr;
    T *const a_panels = (T *)workspace, *const b_panels = (T *)(workspace + cut->a_bytes);
    T *const sums = (T *)(workspace + cut->a_bytes + cut->b_bytes);
    const T *a = (const T *)x->a, *b = (const T *)x->b;
    const NAME(view) none = {NULL, 0, 0};
    const NAME(view) c = {(T *)x->c, x->c_rs, x->c_cs}, out = {(T *)x->out, x->out_rs, x->out_cs};

    for (int64_t j0 = 0; j0 < x->n; j0 += cut->nc)
        for (int64_t s0 = 0; s0 < x->m; s0 += cut->stripe) {
            const int64_t n = min64(cut->nc, x->n - j0), s1 = min64(s0 + cut->stripe, x->m);
            /* raw sums between blocks of k: element (i, j) of C at raw[i - s0, j - j0] */
            NAME(view) raw = {sums, cut->nc, 1};
            if (!cut->sums_bytes) raw = (NAME(view)){NAME(at)(out, s0, j0), out.rs, out.cs};
            int64_t p0 = 0;
            do {
                const int64_t k = min64(cut->kc, x->k - p0);
                const int first = p0 == 0, last = p0 + k == x->k;
                const double alpha = last ? x->alpha : 1;
                if (k) NAME(pack)(b_panels, b + p0 * x->b_rs + j0 * x->b_cs, x->b_cs, x->b_rs, n, k, nr);
                for (int64_t i0 = s0; i0 < s1; i0 += cut->mc) {
                    const int64_t m = min64(cut->mc, s1 - i0);
                    if (k) NAME(pack)(a_panels, a + i0 * x->a_rs + p0 * x->a_cs, x->a_rs, x->a_cs, m, k, mr);
                    for (int64_t j = 0; j < n; j += nr)
                        for (int64_t i = 0; i < m; i += mr) {
                            NAME(view) from = raw, to = raw, addend = none;
                            from.p = first ? NULL : NAME(at)(raw, i0 - s0 + i, j);
                            if (last) {
                                to = out;
                                to.p = NAME(at)(out, i0 + i, j0 + j);
                                if (c.p) addend = (NAME(view)){NAME(at)(c, i0 + i, j0 + j), c.rs, c.cs};
                            } else {
                                to.p = NAME(at)(raw, i0 - s0 + i, j);
                            }
                            const T *a_panel = a_panels + i * k, *b_panel = b_panels + j * k;
                            const int64_t rows = min64(mr, m - i), columns = min64(nr, n - j);
                            NAME(tile)(kernel, rows, columns, k, a_panel, b_panel, from, addend, to, alpha, x->beta);
                        }
                }
                p0 += k;
            } while (p0 < x->k);
        }
}

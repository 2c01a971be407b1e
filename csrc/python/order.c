/* Checks whether products may be computed in any order: no product reads or writes memory that another product writes.
 *
 * 1. The ranges of addresses that are written are listed, and sorted by address if necessary. Results that were
 * created one after another are usually in order already.
 * 2. If neighbouring written ranges overlap, two products write the same memory.
 * 3. For each range that is read, a search finds the last written range that begins before the read range ends. If any
 * written range overlaps the read range, that last one does. The search is skipped if the span of all memory that is
 * read does not overlap the span of all that is written, for example if a, b and out are pieces of three large arrays.
 *
 * Threads share all of this work except the sort.
 */
#include "order.h"

#include <string.h>

enum { A, B, C, OUT };
enum { RUN = 512 };                               /* products per job */
static const double LIST_NS = 3, LOOK_UP_NS = 20; /* estimated nanoseconds per product */

static void widen(written *to, uintptr_t low, uintptr_t high) {
    if (low < to->low) to->low = low;
    if (high > to->high) to->high = high;
}

/* The result of one job. */
typedef struct {
    written read, written; /* all memory that is read, and written: from the lowest address to the highest */
    int ascending;         /* the written ranges ascend, and none overlaps the previous one */
    int dependent;         /* a product reads memory that another product writes */
} part;

typedef struct {
    const products *all;
    int64_t start, count;
    written *outs;
    part parts[MOST_ALIKE / RUN];
} order;

static const reach *reach_of(const products *all, int64_t product) {
    const int kind = all->kinds ? *(const int *)(all->kinds + (size_t)product * all->next_kind) : 0;
    return (const reach *)(all->reaches + (size_t)kind * all->next_reach);
}

/* Stores the address range of a product's operand in `at`. Returns 0 if the operand is not read. */
static int read_at(const products *all, int64_t product, int operand, written *at) {
    const reach *k = reach_of(all, product);
    const gemm_place *place = &all->places[product];
    if (operand == C && !k->reads_c) return 0;
    const void *from = operand == A ? place->a : operand == B ? place->b : place->c;
    *at = (written){(uintptr_t)from + (uintptr_t)k->low[operand], (uintptr_t)from + (uintptr_t)k->high[operand]};
    return from != NULL;
}

static written written_at(const products *all, int64_t product) {
    const reach *k = reach_of(all, product);
    const uintptr_t to = (uintptr_t)all->places[product].out;
    return (written){to + (uintptr_t)k->low[OUT], to + (uintptr_t)k->high[OUT]};
}

static int64_t end_of(const order *x, int64_t job) {
    const int64_t end = (job + 1) * RUN;
    return end < x->count ? end : x->count;
}

static void list_some(void *context, int64_t job, int slot) {
    order *x = (order *)context;
    part found = {{UINTPTR_MAX, 0}, {UINTPTR_MAX, 0}, 1, 0};
    int64_t i = job * RUN;
    uintptr_t before = i ? written_at(x->all, x->start + i - 1).high : 0;
    (void)slot;
    for (; i < end_of(x, job); i++) {
        const written out = x->outs[i] = written_at(x->all, x->start + i);
        found.ascending &= before <= out.low;
        before = out.high;
        widen(&found.written, out.low, out.high);
        for (int operand = 0; operand < OUT; operand++) {
            written read;
            if (read_at(x->all, x->start + i, operand, &read)) widen(&found.read, read.low, read.high);
        }
    }
    x->parts[job] = found;
}

/* Sorts ranges by `low`, for any initial order: a radix sort with digits of eleven bits. `spare` has room for `count`
 * ranges. Returns `all` or `spare`, whichever contains the result. */
static written *sort_any(written *all, written *spare, int64_t count) {
    enum { BITS = 11, DIGITS = 1 << BITS };
    uintptr_t least = all[0].low, most = all[0].low, differ = 0;
    for (int64_t i = 1; i < count; i++) {
        if (all[i].low < least) least = all[i].low;
        if (all[i].low > most) most = all[i].low;
        differ |= all[i].low ^ all[0].low;
    }
    int shift = 0;
    while (differ && !(differ >> shift & 1)) shift++; /* low bits that are equal in all addresses need no sorting */
    for (; shift < (int)sizeof most * 8 && (most - least) >> shift; shift += BITS) {
        int64_t ends[DIGITS] = {0}, end = 0;
        for (int64_t i = 0; i < count; i++) ends[(all[i].low - least) >> shift & (DIGITS - 1)]++;
        for (int digit = 0; digit < DIGITS; digit++) {
            const int64_t many = ends[digit];
            /* the index where this digit's ranges begin; each range that is stored advances it */
            ends[digit] = end, end += many;
        }
        for (int64_t i = 0; i < count; i++) spare[ends[(all[i].low - least) >> shift & (DIGITS - 1)]++] = all[i];
        written *sorted = spare;
        spare = all, all = sorted;
    }
    return all;
}

/* Sorts ranges by `low`. This is fast if most ranges are in order already, as for arrays that were created one after
 * another: the few other ranges are taken out, sorted, and merged again. `spare` and the result are as for sort_any. */
static written *sort(written *all, written *spare, int64_t count) {
    int64_t kept = 0, out = 0;
    for (int64_t i = 0; i < count; i++) {
        const written x = all[i];
        if (!kept || all[kept - 1].low <= x.low)
            all[kept++] = x;
        else if (kept < 2 || all[kept - 2].low <= x.low) /* the previous range is out of order, not x */
            spare[out++] = all[kept - 1], all[kept - 1] = x;
        else
            spare[out++] = x;
        if (out <= count / 8) continue;
        /* More than 1/8 is out of order. Put these ranges back into `all`, in any order, and sort everything. */
        memcpy(all + kept, spare, (size_t)out * sizeof *spare);
        return sort_any(all, spare, count);
    }
    const written *others = out ? sort_any(spare, spare + out, out) : spare;
    for (int64_t to = count; out; kept && all[kept - 1].low > others[out - 1].low ? kept-- : out--)
        all[--to] = kept && all[kept - 1].low > others[out - 1].low ? all[kept - 1] : others[out - 1];
    return all;
}

/* Returns the index of the last range that begins below `end`, or -1 if none does. `all` has `count` ranges in order.
 * `near` is the result of the previous search. */
static int64_t last_before(const written *all, int64_t count, uintptr_t end, int64_t near) {
    /* Products that follow each other usually read neighbouring ranges. */
    for (int step = 0; step < 2 && near < count; step++, near++)
        if ((near < 0 || all[near].low < end) && (near + 1 == count || all[near + 1].low >= end)) return near;
    int64_t low = -1, high = count; /* all[low] begins below `end`, all[high] does not */
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        *(all[middle].low < end ? &low : &high) = middle;
    }
    return low;
}

static void look_up_some(void *context, int64_t job, int slot) {
    order *x = (order *)context;
    int64_t near[OUT] = {-1, -1, -1};
    int dependent = 0;
    (void)slot;
    for (int64_t i = job * RUN; i < end_of(x, job) && !dependent; i++) {
        for (int operand = 0; operand < OUT; operand++) {
            written read;
            if (!read_at(x->all, x->start + i, operand, &read)) continue;
            const int64_t found = near[operand] = last_before(x->outs, x->count, read.high, near[operand]);
            dependent |= found >= 0 && x->outs[found].high > read.low;
        }
    }
    x->parts[job].dependent = dependent;
}

int gemm_independent(const products *all, int64_t start, int64_t stop, written *outs, share_function *share,
                     double ns) {
    order x; /* the jobs fill in `parts` */
    x.all = all, x.start = start, x.count = stop - start, x.outs = outs;
    const int jobs = (int)((x.count + RUN - 1) / RUN);
    share(list_some, &x, jobs, LIST_NS * (double)x.count, ns);
    part whole = x.parts[0];
    for (int job = 1; job < jobs; job++) {
        whole.ascending &= x.parts[job].ascending;
        widen(&whole.read, x.parts[job].read.low, x.parts[job].read.high);
        widen(&whole.written, x.parts[job].written.low, x.parts[job].written.high);
    }
    if (!whole.ascending) {
        x.outs = sort(outs, outs + x.count, x.count);
        for (int64_t i = 1; i < x.count; i++)
            if (x.outs[i - 1].high > x.outs[i].low) return 0;
    }
    if (whole.read.high <= whole.written.low || whole.written.high <= whole.read.low) return 1;
    share(look_up_some, &x, jobs, LOOK_UP_NS * (double)x.count, ns);
    for (int job = 0; job < jobs; job++)
        if (x.parts[job].dependent) return 0;
    return 1;
}

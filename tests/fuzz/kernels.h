/* The engine's kernels, and a check whether this CPU can run them. */
#ifndef KERNELS_H
#define KERNELS_H

#include <string.h>

#include "gemm.h"

/* The catalog's rows for this architecture, as ROW(name, "feature feature "). ci/engine.py generates rows.h. */
#define ROW(name, needs) extern const gemm_kernel name;
#include "rows.h"
#undef ROW
static const struct {
    const gemm_kernel *kernel;
    const char *needs;
} rows[] = {
#define ROW(name, needs) {&name, needs},
#include "rows.h"
#undef ROW
};

static int runs_here(const char *needs) {
    for (size_t length; *needs; needs += length + 1) {
        length = strcspn(needs, " ");
        int bit = 0;
        while (gemm_feature_names[bit] &&
               (strlen(gemm_feature_names[bit]) != length || strncmp(gemm_feature_names[bit], needs, length)))
            bit++;
        if (!gemm_feature_names[bit] || !(gemm_features() >> bit & 1)) return 0;
    }
    return 1;
}

#endif

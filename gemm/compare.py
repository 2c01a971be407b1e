"""Comparisons: families of products on every backend and beside other libraries, offload thresholds, a report.

`gemm bench --compare` makes one; `compare` does from Python, and a notebook shows what it returns. The JSON document
(times in seconds; what does not apply or is not known is null):

    schema      "gemm-compare/1"
    date, command, commit, versions, machine, environment    when, where and by what, as in gemm.cli.bench
    dtype, quick, families, rounds, method                   what was asked for, and what each time means
    devices     [{key, backend, name, platform, driver, kind, unified, features, limits}]
    contestants {contestant: what it is}
    absent      {peer or backend: why it takes no part}
    roofs       {device key: {gflops, gflops_basis, memory_gbs, memory_basis}}
    results     [{family, name, series, size, m, n, k, batch, contestant, backend, device, kernel, mode, products,
                  measured, seconds, spread, gflops, percent_of_peak, worst_error, valid, error, samples_s}]
    thresholds  [{series, contestant, mode, products, size, below, sizes, verdicts, ratios}]
    choice      {sizes, k, chosen, lead}: gemm.bench.choices
    left_out    [what there was not enough memory for]
    quiet       {load_before, load_after, others_cores, stolen, median_spread, warnings}

A result is of one mode: "host", from host memory to host memory, transfers included; "resident", of operands on the
device; "once", operands sent once, `products` products, the last result fetched. seconds is the median of a product's
time over the samples, spread their interquartile range ÷ seconds; measured is false where samples of repeated products
are one product's and a multiple of the resident time. worst_error is the largest error in units of the contract's
bound, null for NaN; valid allows our results one bound and others four. error says why a contestant gave no times. The
CSV file has the results but their samples.

A threshold is that of gemm.bench.threshold: size, or null if the device is not ahead; below, the next smaller size;
for each of `sizes` the verdict and how many times as fast as the cpu backend the contestant was.
"""

from gemm.bench.comparison import SCHEMA, Comparison, compare

__all__ = ["SCHEMA", "Comparison", "compare"]

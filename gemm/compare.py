"""Benchmark comparisons. A comparison times families of products on every backend and in other libraries, and makes a
report. A contestant is a device of a backend, NumPy or another library.

`gemm bench --compare` runs a comparison from the command line, and `compare` runs one from Python. A notebook displays
the object that `compare` returns. Times in the JSON document are in seconds. A value that does not apply or is unknown
is null:

    schema      "gemm-compare/1"
    date, command, commit, versions, machine, environment    provenance of the run, as in gemm.cli.bench
    dtype, inputs, precision, reproducible                   see gemm.bench.products.Arithmetic
    quick, families, rounds, method                          the request; method: what each time means, in words
    devices     [{key, backend, name, platform, driver, kind, unified, features, limits}]
    contestants {contestant: its description}
    absent      {peer (another library) or backend: why it is missing}
    roofs       {device key: {gflops, gflops_basis, memory_gbs, memory_basis}}: the peaks of the roofline
    links       {device key: {to_pageable_gbs, from_pageable_gbs, to_locked_gbs, from_locked_gbs, launch_s}}
    results     [{family, name, series, size, m, n, k, batch, contestant, backend, device, kernel, mode, products,
                  measured, seconds, spread, unsettled, gflops, percent_of_peak, worst_error, valid, error, samples_s}]
    thresholds  [{series, contestant, mode, products, size, below, sizes, verdicts, ratios}]
    choice      {sizes, k, chosen, lead}: see gemm.bench.comparison.choices
    left_out    [products for which there was not enough memory]
    quiet       {load_before, load_after, others_before, stolen_before, others_cores, stolen, median_spread, warnings}:
                see gemm.bench.contest.Watch

The fields of a result:

- mode: "host" measures from host memory to host memory, transfers included. "resident" measures with operands that are
  already on the device. "once" sends the operands once, computes `products` products and fetches the last result.
- seconds: the median over the samples of the time of one product. spread: the interquartile range of the samples,
  divided by seconds, or null for fewer than three samples.
- unsettled: the number of resident samples of a GPU that were taken although its clocks had not settled.
- measured: false if the samples of mode "once" were extrapolated: the time of one product, plus the median resident
  time for each further product.
- worst_error: the largest error in units of the contract's error bound; null for NaN. valid: for gemm's results, the
  error is at most one bound; for other libraries, at most four bounds.
- error: why a contestant has no times.

The CSV file contains the results without their samples.

A threshold is the smallest size from which a device stays faster than the CPU: see gemm.bench.verdicts. Its `size` is
null if there is no such size. Its `below` is the next smaller size that was measured. `verdicts` and `ratios` have one
entry for each of `sizes`: the verdict, and the time of the cpu backend divided by the time of the contestant.
"""

from gemm.bench.comparison import SCHEMA, Comparison, compare

__all__ = ["SCHEMA", "Comparison", "compare"]

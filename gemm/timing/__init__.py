"""How products are timed for people: contestants in turn (`contest`), on a machine at `rest`, beside a device's `peak`.

For `gemm bench`, for comparisons and for benchmarks/. What dispatch goes by, gemm.measure times.
"""

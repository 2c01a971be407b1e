"""The backends: one module each, named in `gemm.catalog.BACKENDS`, loaded on first use."""

"""The backends. `gemm.catalog.BACKENDS` names the module of each backend; gemm imports a module on first use."""

"""Which kernel, on which device: candidates → measured or predicted time → the least."""

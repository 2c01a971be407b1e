"""Additions to single products: batching, pointer batches, prepacked matrices, zero-copy arrays and libgemm."""

"""Benchmarks: time products, compare contestants and draw the results."""

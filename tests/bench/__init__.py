"""Benchmarks: they give ratios within one run, never figures to compare across machines."""

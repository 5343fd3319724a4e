"""Generalized linear models from noisy sums: one engine for all families."""

"""Synthetic records from noisy tables."""

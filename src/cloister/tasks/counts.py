"""Counts of records, on a lattice so fine that noise on it is as good as continuous.

Noise on a lattice whose steps are as large as the sensitivity is too weak for the formulas, so a
record counts ``2**16`` where it counts 1.
"""

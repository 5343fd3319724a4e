"""Privacy of releases: events, accounting, calibration, noise and the ledger.

This module imports nothing, so that a party that needs only events and budgets never loads SciPy.
"""

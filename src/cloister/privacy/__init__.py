"""What a release costs: events, accounting, calibration, clipping, noise and the ledger.

Nothing is imported here, so that a party which only needs events and budgets never loads scipy.
"""

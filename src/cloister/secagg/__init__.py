"""Secure aggregation: how a vector is blinded so that only the sum can be read."""

"""Secure aggregation: masks that hide each silo's vector and cancel in the sum."""

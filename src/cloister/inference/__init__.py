"""Scoring without showing the row: models as frozen values, and their private evaluation."""

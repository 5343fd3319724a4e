"""Inference on hidden rows: encrypted scoring, networks on shares, votes."""

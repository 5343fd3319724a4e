"""Supervised learning: models that predict a column."""

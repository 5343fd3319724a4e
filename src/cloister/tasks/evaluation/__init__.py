"""Evaluation: the quality of released models and clusters on test records."""

"""Evaluation: how good a released model is on records held back."""

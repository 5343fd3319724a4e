"""Preparation: bounds, scaling, components, statistics, and pipelines of several tasks."""

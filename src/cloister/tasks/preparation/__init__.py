"""Preparation: bounds, scaling, components, statistics, and several tasks as one."""

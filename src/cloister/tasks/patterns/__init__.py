"""Patterns: frequent itemsets, association rules, and outliers."""

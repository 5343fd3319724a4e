"""Patterns: frequent itemsets, association rules, unusual records."""

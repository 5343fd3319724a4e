"""Shared basics: errors, arrays, randomness, dates, displays, declarations, pages."""

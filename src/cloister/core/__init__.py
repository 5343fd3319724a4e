"""What every room uses: errors, arrays, randomness, dates, displays, declarations, pages."""

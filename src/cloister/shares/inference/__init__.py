"""Using a model without showing the row: encrypted scoring, networks on shares, votes."""

"""Tasks about times until something happens."""

"""Commands that the laboratory adds to ``cloister``."""

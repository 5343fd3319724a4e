"""The laboratory of cloister: published methods, rivals, experiments and broken twins."""

"""The laboratory of cloister: published methods, rivals, experiments and mutants."""

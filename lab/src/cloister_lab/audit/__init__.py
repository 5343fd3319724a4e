"""Mutants, an adversary's kit, and audits of methods that need a curator."""

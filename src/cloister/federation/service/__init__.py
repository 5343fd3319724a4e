"""The coordinator: one TLS port for rounds, jobs, health and metrics."""

"""A silo: its agent, its store of jobs, its policy. Nothing here listens; it dials out."""

"""A silo: its agent, its store of jobs, its policy. It dials out and listens on no port."""

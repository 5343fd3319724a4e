"""Pages on loopback for people who would rather not use a terminal."""

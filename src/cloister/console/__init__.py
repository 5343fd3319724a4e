"""Pages on loopback for users who prefer a browser to a terminal."""

"""``cloister coordinator``: run the service that carries rounds between silos."""

from cloister.cli.party import add_arguments, run

__all__ = ["add_arguments", "run"]

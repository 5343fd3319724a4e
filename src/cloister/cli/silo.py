"""``cloister silo``: run the agent of one silo."""

from cloister.cli.party import add_arguments, run

__all__ = ["add_arguments", "run"]

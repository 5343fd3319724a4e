"""Interface of ``shares`` for other packages, which must not import it.

A hook has a type, declared here, and a place. ``shares`` implements the type. The first call of
:meth:`Hook.load` imports its module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    import argparse
    import threading

    from cloister.core.arrays import Floats

T = TypeVar("T")


class Command(Protocol):
    """A command: a module, or a value in one."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""

    def run(self, args: argparse.Namespace, out: Any) -> Mapping[str, Any] | None:
        """Run the command and return the document of ``--json``."""


class Service(Protocol):
    """A party that serves until it is stopped."""

    def run(self, settings: Any, *, stop: threading.Event | None = None) -> None:
        """Serve in the role of the settings until `stop` is set."""


class ScoringClient(Protocol):
    """A function that requests predictions for the rows of a file from a scorer."""

    def __call__(
        self, url: str, keys: Path, file: Path, warn: Callable[[str], None]
    ) -> tuple[tuple[Any, ...], Floats]:
        """Return the classes, empty for a regression, and predictions or probabilities.

        The scorer sees ciphertexts alone. `keys` is the caller's folder; `warn` receives a sentence
        on the facts that remain visible.
        """


ModelEntries = Callable[[Path], int]
"""Returns the number of entries of a scorer's model file."""
ModelWriter = Callable[[Any], bytes]
"""Returns a released model in the format of another library."""


class Hook(NamedTuple, Generic[T]):
    """The place of a value of type T: a module, or ``module:name``."""

    place: str

    def load(self) -> T:
        """Import the module and return the value."""
        # A late import: commands without shares do not load its libraries of arithmetic.
        module, _, name = self.place.partition(":")
        value: T = import_module(module)  # type: ignore[assignment]
        return getattr(value, name) if name else value


COMPUTE = Hook[Command]("cloister.shares.commands.compute")
LINK = Hook[Command]("cloister.shares.commands.link")
SCORER = Hook[Service]("cloister.shares.inference.service")
MODEL_ENTRIES = Hook[ModelEntries]("cloister.shares.inference.linear:entries_of_file")
SCORING_CLIENT = Hook[ScoringClient]("cloister.shares.inference.client:scores_of_file")
MODEL_WRITERS: Mapping[str, Hook[ModelWriter]] = {
    "sklearn": Hook("cloister.shares.inference.export:to_pickle"),
    "onnx": Hook("cloister.shares.inference.export:to_onnx"),
}
"""Writers by the format of ``cloister export --to``."""

"""The catalogue of tasks: one file per algorithm, found by its name, imported when asked for.

Tasks that ship stand in ``TASKS``. Those of other packages come by the entry-point group
``cloister.tasks``, those of a file by :func:`from_file`; code never comes over the network.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cloister.core import catalogue
from cloister.core.deprecated import resolve
from cloister.core.errors import CloisterError, PlanError
from cloister.protocol.task import Task, check_task_class, has_rows

GROUP = "cloister.tasks"
"""Entry points of this group name a task: ``crosstab = "my_package.crosstab:Crosstab"``."""


class Catalogue(Mapping[str, type[Task]]):
    """Tasks by name; looking one up imports its file, listing the names imports nothing.

    `places` leads from a name to ``"module:Class"`` or ``"path/to/file.py:Class"``.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self.places = dict(sorted(places.items()))

    def __getitem__(self, name: str) -> type[Task]:
        module, _, kind = self.places[name].rpartition(":")
        task: type[Task] = (
            from_file(self.places[name])
            if module.endswith(".py")
            else getattr(import_module(module), kind)
        )
        check_task_class(task, self.places[name])
        if task.name != name:
            raise PlanError(
                f"task {kind!r} of {module!r} must be called {name!r} as in the catalogue, got "
                f"{task.name!r}; rename one of them."
            )
        return task

    def __contains__(self, name: object) -> bool:
        return name in self.places  # Mapping would import it to find out

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __repr__(self) -> str:
        return f"Catalogue({', '.join(self.places)})"


_ROWS: Mapping[str, Any] = catalogue.ROWS
TASKS: Mapping[str, type[Task]] = Catalogue(
    {name: f"cloister.tasks.{row['task']}" for name, row in _ROWS.items()}
)
"""Every task that ships, by its name."""


def installed(names: Collection[str] | None = None) -> Catalogue:
    """Return the tasks that ship and those of installed packages; refuse two of one name.

    Of other packages, only those of `names` are there; all by default.
    """
    places = {name: f"cloister.tasks.{row['task']}" for name, row in _ROWS.items()}
    for name, place in _entry_points_of_tasks():
        if names is not None and name not in names:
            continue
        if places.setdefault(name, place) != place:
            raise PlanError(
                f"task {name!r} must come from one package, got {places[name]!r} and {place!r}; "
                "uninstall one of them."
            )
    return Catalogue(places)


@cache
def _entry_points_of_tasks() -> tuple[tuple[str, str], ...]:
    """Return names and places of other packages' tasks; looked up once, which takes time."""
    return tuple((entry.name, entry.value) for entry in entry_points(group=GROUP))


def from_file(place: str) -> type[Task]:
    """Return the task that ``path/to/file.py:ClassName`` names; the file is executed, once."""
    file, _, name = place.rpartition(":")
    module = _executed(Path(file).resolve())
    if not hasattr(module, name):
        raise PlanError(f"task {place!r} is not there: the file has no class {name!r}.")
    task = check_task_class(getattr(module, name), place)
    if not has_rows(task):
        warnings.warn(
            f"task {task.name!r} has no member 'rows', so the core cannot check what each record "
            "contributes; the next version requires it, see cloister.tasks.custom.task.",
            FutureWarning,
            stacklevel=2,
        )
    return task


@cache
def _executed(path: Path) -> ModuleType:
    spec = spec_from_file_location(f"cloister_task_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise PlanError(f"task file {str(path)!r} cannot be read; check its path.")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their annotations up
    try:
        spec.loader.exec_module(module)
    except CloisterError:
        raise
    except Exception as error:  # whatever the user's file does
        raise PlanError(
            f"task file {str(path)!r} cannot be executed: {type(error).__name__}: {error}."
        ) from error
    return module


if not TYPE_CHECKING:  # type checkers shall see today's names only

    def __getattr__(name: str) -> Any:
        return resolve(__name__, name)

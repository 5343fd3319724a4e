"""The catalogue of tasks: one file per algorithm, looked up by name and imported on first use.

``TASKS`` holds the tasks of this package. Tasks of other packages come from the entry-point group
``cloister.tasks``, tasks of a file from :func:`from_file`. Code never comes over the network.
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
    """Tasks by name; a look-up imports the task's file, a listing of names imports nothing.

    `places` maps a name to ``"module:Class"`` or ``"path/to/file.py:Class"``.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        # The order of entry points depends on the installation.
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
        return name in self.places  # the method of Mapping would import the task

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
"""The tasks of this package by name."""


def installed(names: Collection[str] | None = None) -> Catalogue:
    """Return the tasks of this package and of other installed packages.

    Parameters
    ----------
    names : collection of str, optional
        Tasks to include from other packages; all by default.

    Raises
    ------
    PlanError
        If two packages define tasks of one name.
    """
    places = {name: f"cloister.tasks.{row['task']}" for name, row in _ROWS.items()}
    for name, place in _entry_points_of_tasks():
        # A conflict of tasks that the caller does not use raises no error.
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
    """Return names and places of other packages' tasks."""
    # Cached: the look-up reads the metadata of every installed package.
    return tuple((entry.name, entry.value) for entry in entry_points(group=GROUP))


def from_file(place: str) -> type[Task]:
    """Return the task at ``path/to/file.py:ClassName``; the file is executed once per process."""
    file, _, name = place.rpartition(":")
    module = _executed(Path(file).resolve())
    if not hasattr(module, name):
        raise PlanError(
            f"task {place!r} is missing: the file has no class {name!r}; correct the name."
        )
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
    sys.modules[spec.name] = module  # dataclasses resolve their annotations there
    try:
        spec.loader.exec_module(module)
    except CloisterError:
        raise
    except Exception as error:  # the user's file may raise anything
        raise PlanError(
            f"task file {str(path)!r} cannot be executed: {type(error).__name__}: {error}."
        ) from error
    return module


if not TYPE_CHECKING:  # type checkers see the current names only

    def __getattr__(name: str) -> Any:
        return resolve(__name__, name)

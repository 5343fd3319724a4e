"""Which code a task is: its package, the version of it, and a digest of all source it is made of.

A plan names the code that it was designed with, and a silo with other code refuses it: two silos
that would sum different things can never start a round. The source of a task is its own file and
every file of its package, and of cloister, that those import, at any depth; so a change of a
command or a report is no change of a task.

A file is read once in a process. One that changes on disk later is not what runs here, so a process
that lives long calls :func:`remember` as it starts.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cloister.protocol.plan import WITHOUT_LAYOUT, Code, Plan
from cloister.task import Task, tasks_inside

_OURS = "cloister"
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Where statements lie within statements; an import is one, so no expression need be walked."""


def code_of(task: Task) -> Code | None:
    """Return the code of a task and of every task that it is made of.

    Returns
    -------
    Code, or None
        None for a class that stands in no file, such as one of a notebook: it runs in this process
        only.
    """
    return _code(*dict.fromkeys(type(one) for one in tasks_inside(task)))


def remember(tasks: Mapping[str, type[Task]], names: Iterable[str]) -> None:
    """Import these tasks and take their digests now, while both come from the same files.

    What cannot be imported is passed over: whoever asks for that task is told why.
    """
    for name in names:
        with suppress(Exception):  # whatever another's file does
            _code(tasks[name])


def other_code(plan: Plan) -> str | None:
    """Say in one sentence why the code of a plan is not ours, or return None if it is.

    A plan of the protocol that named no code is taken as it is.
    """
    if not plan.opened:
        return (
            f"task {plan.task.name!r} is not installed here; install its package, or name its file "
            "in this silo's settings."
        )
    theirs, ours = plan.code, code_of(plan.task)
    if plan.protocol == WITHOUT_LAYOUT or (theirs is not None and theirs == ours):
        return None
    if theirs is None or ours is None:
        return f"task {plan.task.name!r} comes from no file; write it to one and plan again."
    return (
        f"task {plan.task.name!r} was planned with {_shown(theirs)}, this silo has {_shown(ours)}; "
        "use the same code at every party."
    )


def _shown(code: Code) -> str:
    return f"{code.distribution} {code.version} (code {code.digest[:12]})".replace("  ", " ")


@cache
def _code(*kinds: type[Task]) -> Code | None:
    sources: dict[str, Path] = {}
    for kind in kinds:
        if _file_of(kind) is None:
            return None
        sources |= _sources(kind)
    digest = hashlib.sha256()
    # By the last part of its path: a file lies in another folder on every machine.
    for name, source in sorted((path.name, _read(path)[0]) for path in sources.values()):
        digest.update(f"{name}\0{len(source)}\0".encode() + source)
    return Code(*_distribution(kinds[0]), digest.hexdigest())


def _distribution(kind: type[Task]) -> tuple[str, str]:
    """Return name and version of the package that a task came with."""
    top = kind.__module__.partition(".")[0]
    try:
        return top, version(top)
    except PackageNotFoundError:
        pass
    for name in _packages().get(top, ()):
        return name, version(name)
    return f"{top}.py", ""


@cache
def _packages() -> Mapping[str, list[str]]:
    """Return the distributions of each top-level module; it reads the list of files of each."""
    return packages_distributions()


def _sources(kind: type[Task]) -> dict[str, Path]:
    """Return the file of a task and those it imports of its package and of ours, by module."""
    own = _file_of(kind)
    assert own is not None
    tops = {kind.__module__.partition(".")[0], _OURS}
    found = {kind.__module__: own}
    waiting = [kind.__module__]
    while waiting:
        _, imported = _read(found[waiting.pop()])
        for name in (name for name in imported if name.partition(".")[0] in tops):
            path = _module_file(name)
            if path is not None and name not in found:
                found[name] = path
                waiting.append(name)
    return found


def _file_of(kind: type[Task]) -> Path | None:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return Path(file) if file and Path(file).is_file() else None


@cache
def _read(path: Path) -> tuple[bytes, tuple[str, ...]]:
    """Return a source file as it is on every system, and the names that it imports.

    Some of the names are modules, others classes and functions.
    """
    source = path.read_bytes().replace(b"\r\n", b"\n")
    names: list[str] = []
    waiting: list[Any] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        for part in _BLOCKS:
            waiting += getattr(node, part, ())
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return source, tuple(names)


@cache
def _module_file(name: str) -> Path | None:
    """Return the source of a module, or None where the name is none or its module is compiled.

    What was compiled computes what source in the digest says, on every machine by other means.
    """
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:  # a name in a module that is no package
        return None
    if not (spec and spec.origin and spec.has_location):
        return None
    path = Path(spec.origin)
    return path if path.suffix == ".py" else None

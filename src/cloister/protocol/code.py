"""The code of a task: package, version and a digest of its sources.

A plan names the code that it was designed with, and a silo with other code refuses the plan. So two
silos that would compute different sums never start a round.

The digest covers the source of the task and every source that it imports, at any depth. These are
the sources of its package, of the files next to a lone file, and of cloister. Imports are followed
as files; no module is imported. Of each source the canonical text (:mod:`cloister.core.syntax`)
counts, under the name of its module. A changed comment, docstring or annotation therefore leaves
the digest equal, and so does a changed command or report.

Some sources depend on more than that text, or on files that no import names. For these, all their
bytes count, or the bytes of every file of the package and of cloister (:class:`_Weight`).

Compiled modules do not count, because a silo with a compiler and a silo without one must accept
each other. The compiled loops of cloister compute the same integers as a source in the digest
(``docs/proofs/kernel.md``). A package of another author that imports its own compiled module
counts with all its files.

A file is read once per process. A file that changes on disk later differs from the running code, so
a long-lived process calls :func:`preload_digests` when it starts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

from cloister.core.syntax import GUARD, Import, Syntax, read_syntax
from cloister.protocol.plan import WITHOUT_LAYOUT, Code, Plan
from cloister.protocol.releases import earlier_code
from cloister.protocol.task import Task, nested_tasks


class _Weight(IntEnum):
    """The parts of a task's sources that the digest covers."""

    TEXT = 0
    """The canonical text of the task's source and of the sources it imports."""
    BYTES = 1
    """All bytes of these: comments, docstrings and annotations may change the computation."""
    ALL_FILES = 2
    """All bytes of every file: code or data may be loaded that no import names."""


def _used(names: str) -> frozenset[str]:
    """Return the words under which a source uses names: as they are or as attributes."""
    return frozenset(word for name in names.split() for word in (name, f".{name}"))


_READS_SOURCE = _used(
    """__doc__ __annotations__ __annotate__ __type_params__ __dict__ __code__ __globals__
    __traceback__ getdoc getcomments getsource getsourcelines get_type_hints get_annotations
    get_overloads singledispatch singledispatchmethod attrgetter methodcaller inspect annotationlib
    pydoc ast tokenize linecache traceback lineno tb_lineno f_lineno co_firstlineno
    __getattribute__ __getstate__ __reduce__ __reduce_ex__ __subclasses__ Formatter"""
) | {"getattr()", "hasattr()", "vars", "dir", "locals", "help"}
"""Words of a source that may read docstrings, annotations or line numbers."""
_READS_FILES = (
    _used(
        """__import__ __builtins__ __file__ __path__ __spec__ __loader__ __package__ __cached__
        import_module find_spec spec_from_file_location module_from_spec run_path run_module
        get_data get_loader iter_modules walk_packages entry_points modules builtins importlib
        pkgutil runpy sys os io pathlib resolve open exec eval globals fromfile loadtxt
        genfromtxt memmap open_memmap load_npz load_library ctypeslib f2py datasets
        __self__ f_globals f_builtins f_locals gi_frame cr_frame tb_frame f_back"""
    )
    | {"compile", ".load", "__getattr__", "def __getattr__"}
    | {"setattr()", "delattr()", f"{GUARD} ="}
)
"""Words of a source that may load code or data which no import names.

``__getattr__`` of a module gives names that are not written in it.
"""
_LIBRARIES = ("numpy", "scipy", "typing_extensions")
_KNOWN = frozenset(
    [
        *("__future__", "abc", "array", "base64", "binascii", "bisect", "calendar", "cmath"),
        *("collections", "contextlib", "copy", "dataclasses", "datetime", "decimal", "enum"),
        *("fractions", "functools", "hashlib", "heapq", "hmac", "itertools", "json", "math"),
        *("numbers", "operator", "random", "re", "statistics", "string", "struct", "textwrap"),
        *("time", "types", "typing", "unicodedata", "warnings", "zlib"),
        *_LIBRARIES,
    ]
)
"""Libraries that read no docstring and no annotation of a function passed to them."""

_OURS = "cloister"
_FOLDER = Path(__file__).absolute().parents[2]
"""The folder that the package cloister is in."""
_BY_NAME = frozenset({_OURS, "cloister.tasks"})
"""Packages of cloister that import modules by name, at run time.

Tasks of cloister request from `cloister.tasks` the steps that a plan names. Each step is a field of
its task, so :func:`code_of` covers it.
"""
_CATALOGUE = "cloister.core.catalogue"
"""The table of names and places. A new row changes no task; the class at a place is covered."""
_NOTHING = (read_syntax(b""), read_syntax(b"from __future__ import annotations"))
"""Sources without an effective statement."""
_EXPLAINED: Mapping[str, frozenset[str]] = {
    # Public names and old names, which no room below the command line imports from the package.
    _OURS: _used("import_module importlib __getattr__ resolve") | {"def __getattr__"},
    "cloister.core.deprecated": _used("import_module resolve modules sys importlib __getattr__"),
    "cloister.protocol.task": _used("resolve") | {"def __getattr__"},
    "cloister.core.display": _used("resolve") | {"def __getattr__"},
    # Imports tasks by name; the digest covers the tasks of a plan through their classes.
    "cloister.tasks": _used(
        """import_module resolve modules sys importlib entry_points spec_from_file_location
        module_from_spec pathlib"""
    )
    | {"def __getattr__"},
    # Reads annotations in class bodies, which the text includes, and globals of their modules.
    "cloister.core.declared": _used("get_type_hints sys modules"),
    "cloister.tasks.state": _used("get_type_hints"),
    # Reads names and defaults of parameters, which the text includes.
    "cloister.tasks.options": _used("inspect"),
    # Chooses by machine between two loops that compute the same integers.
    "cloister.core.compiled": _used("os"),
    # Randomness of the operating system, which no source determines.
    "cloister.core.randomness": _used("os"),
}
"""Words of cloister's own modules that the digest tolerates, with the reason above each."""


def code_of(task: Task) -> Code | None:
    """Return the code of a task and of every task inside it.

    Returns
    -------
    Code, or None
        None for a class defined in no file, for example in a notebook; it runs in this process
        only.
    """
    return _code(*dict.fromkeys(type(one) for one in nested_tasks(task)))


def preload_digests(tasks: Mapping[str, type[Task]], names: Iterable[str]) -> None:
    """Import these tasks and compute their digests now, while both use the same files.

    A task that cannot be imported is skipped: a plan that names it is refused with the reason.
    """
    for name in names:
        with suppress(Exception):  # importing another author's file may raise any error
            _code(tasks[name])


def code_mismatch(plan: Plan) -> str | None:
    """Return why the plan's code differs from the installed code, or None.

    A plan of protocol 1, which names no code, is accepted. So is the code of the release before,
    if it computes the same.
    """
    if not plan.opened:
        return (
            f"task {plan.task.name!r} is not installed here; install its package, or name its file "
            "in this silo's settings."
        )
    remote, installed = plan.code, code_of(plan.task)
    if plan.protocol == WITHOUT_LAYOUT:
        return None
    if remote is not None and remote in (installed, earlier_code(plan.task)):
        return None
    if remote is None or installed is None:
        return f"task {plan.task.name!r} comes from no file; write it to one and plan again."
    return (
        f"task {plan.task.name!r} was planned with {_shown(remote)}, this silo has "
        f"{_shown(installed)}; use the same code at every party."
    )


def _shown(code: Code) -> str:
    # A lone file has no version, which would leave two spaces.
    return f"{code.distribution} {code.version} (code {code.digest[:12]})".replace("  ", " ")


@cache
def _code(*kinds: type[Task]) -> Code | None:
    homes = [home for kind in kinds if (home := _Home.of(kind)) is not None]
    if len(homes) < len(kinds):
        return None
    sources: dict[str, Path] = {}
    files: dict[str, Path] = {}
    weight = _Weight.TEXT
    for home in homes:
        followed = _followed(home)
        weight = max(weight, *(_weight(home, name, path) for name, path in followed.items()))
        sources |= _that_count(followed)
        files |= _data_files(home, followed)
    if any("<locals>" in kind.__qualname__ for kind in kinds):  # closes over values of any module
        weight = _Weight.ALL_FILES
    if weight is _Weight.ALL_FILES:
        for home in homes:
            files |= _all_files(home, _followed(home))
    digest = sha256("\0".join(f"{k.__module__}:{k.__qualname__}" for k in kinds).encode())
    # Each entry has its length, so that no two sets of sources give the same bytes. Module names,
    # not paths, enter the digest, as folders differ between machines.
    for name, path in sorted(sources.items()):
        source, syntax = _read(path)
        counted = syntax.text.encode() if syntax and weight is _Weight.TEXT else source
        digest.update(f"\0{name}\0{len(counted)}\0".encode() + counted)
    for name, path in sorted(files.items()):
        content = _content(path)
        digest.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return Code(*_distribution(kinds[0]), digest.hexdigest())


def _distribution(kind: type[Task]) -> tuple[str, str]:
    """Return name and version of the package that contains a task."""
    top = kind.__module__.partition(".")[0]
    # Most packages have the name of their module; the table of all packages is slow to build.
    try:
        return top, version(top)
    except PackageNotFoundError:
        pass
    for name in _packages().get(top, ()):
        return name, version(name)
    return f"{top}.py", ""


@cache
def _packages() -> Mapping[str, list[str]]:
    """Return the distributions of each top-level module, read from their lists of files."""
    return packages_distributions()


@dataclass(frozen=True)
class _Home:
    """The location of a task's sources.

    Parameters
    ----------
    module : str
        Module of the task.
    file : Path
        The file of that module.
    folder : Path
        The folder that contains its top-level package, or its lone file.
    lone : bool
        True if the module name does not determine the path of the file.
    """

    module: str
    file: Path
    folder: Path
    lone: bool

    @classmethod
    def of(cls, kind: type[Task]) -> _Home | None:
        """Return the location of a task, or None if no file contains it."""
        name = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if not name or not Path(name).is_file():
            return None
        file = Path(name).absolute()
        base = file.parent if file.stem == "__init__" else file.with_suffix("")
        parts = tuple(kind.__module__.split("."))
        if base.parts[-len(parts) :] == parts:
            return cls(kind.__module__, file, base.parents[len(parts) - 1], lone=False)
        return cls(kind.__module__, file, file.parent, lone=True)

    @property
    def top(self) -> str:
        """Top-level package of the task."""
        return self.module.partition(".")[0]

    def file_of(self, name: str) -> Path | None:
        """Return the source of a module of cloister or of the task's author, or None.

        A module next to the task's package counts as its author's, unless another distribution
        installed it.
        """
        top = name.partition(".")[0]
        if name == self.module:
            return self.file
        if top == _OURS:
            return _module_file(_FOLDER, name)
        if self.top == _OURS or top in _LIBRARIES or (top == self.top and self.lone):
            return None
        path = _module_file(self.folder, name)
        if path is None or top == self.top:
            return path
        return None if set(_packages().get(top, ())) - set(_packages().get(self.top, ())) else path


def _followed(home: _Home) -> dict[str, Path]:
    """Return the sources of a task and of all its imports, by module; import no module."""
    sources: dict[str, Path] = {}
    waiting = [home.module]
    while waiting:
        name = waiting.pop()
        path = home.file_of(name)
        if name in sources or path is None:
            continue
        sources[name] = path
        waiting += _parents(name)
        _, syntax = _read(path)
        for statement in syntax.imports if syntax else ():
            module = _module_of(statement, name, path)
            # `from a import b` may name a module b of package a, or an attribute of module a.
            waiting += [module, f"{module}.{statement.name}"] if statement.name else [module]
    return sources


def _that_count(found: Mapping[str, Path]) -> dict[str, Path]:
    """Return the sources except those without an effective statement and the table of names."""
    return {
        name: path
        for name, path in found.items()
        if _read(path)[1] not in _NOTHING and not (name == _CATALOGUE and _is_table(path))
    }


def _sources(kind: type[Task]) -> dict[str, Path]:
    """Return the sources that the digest of a task covers, by module."""
    home = _Home.of(kind)
    return _that_count(_followed(home)) if home else {}


def _parents(name: str) -> list[str]:
    """Return the parent packages of a module, which Python imports first."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _module_of(one: Import, name: str, path: Path) -> str:
    """Return the absolute name of the module of an import statement in module `name`."""
    if not one.level:
        return one.module
    # Relative imports start from the package: of a package's own file, that is the package itself.
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    package = package[: len(package) - one.level + 1]
    return ".".join([*package, one.module] if one.module else package)


def _weight(home: _Home, name: str, path: Path) -> _Weight:
    """Return the weight that one source requires for all sources of a task."""
    _, syntax = _read(path)
    if syntax is None:  # unreadable syntax may use anything
        return _Weight.ALL_FILES
    words = syntax.words - _EXPLAINED.get(name, frozenset())
    installed = name.partition(".")[0] == _OURS
    if installed:  # cloister uses them for fields of values only; tests pin its imports
        words -= {"getattr()", "hasattr()", "vars"}
    if words & _READS_FILES:
        return _Weight.ALL_FILES
    weights = [_Weight.BYTES if words & _READS_SOURCE else _Weight.TEXT]
    if not installed:
        weights += [_weight_of(home, statement, name, path) for statement in syntax.imports]
    return max(weights)


def _weight_of(home: _Home, one: Import, name: str, path: Path) -> _Weight:
    """Return the weight that an import in a source of another author requires."""
    module = _module_of(one, name, path)
    parts = module.split(".")
    if parts[0] in _KNOWN:
        return _Weight.BYTES if "io" in parts or "testing" in parts else _Weight.TEXT
    file = home.file_of(module)
    if parts[0] not in {_OURS, home.top} and file is None and not one.level:
        return _Weight.BYTES  # an unknown library may read docstrings of its arguments
    # A package used as a value gives access to any of its modules that other code imported.
    if one.name is None:
        value = home.file_of(module if one.alias else parts[0])
        clear = file is not None and value is not None and value.stem != "__init__"
    else:
        value = home.file_of(f"{module}.{one.name}")
        _, syntax = _read(file) if file else (b"", None)
        defined = syntax is not None and one.name in syntax.bound and module not in _BY_NAME
        clear = value.stem != "__init__" if value else defined
    return _Weight.TEXT if clear else _Weight.ALL_FILES


def _data_files(home: _Home, found: Mapping[str, Path]) -> dict[str, Path]:
    """Return the files other than sources in the packages of another author's task."""
    if home.top == _OURS:
        return {}
    packages = [
        path.parent
        for name, path in found.items()
        if path.name == "__init__.py" and name.partition(".")[0] != _OURS
    ]
    return {
        path.relative_to(home.folder).as_posix(): path
        for package in packages
        for path in _files_in(package, nested=False)
        if not path.name.endswith((".py", ".pyi", ".pyc", *EXTENSION_SUFFIXES))
    }


def _all_files(home: _Home, found: Mapping[str, Path]) -> dict[str, Path]:
    """Return every file that a task may use: of its package, of cloister, and near a lone file.

    The folder of a lone file may contain unrelated files, so only files named in a source count.
    """
    installed = [path for path in _files_in(_FOLDER / _OURS) if path.suffix == ".py"]
    package = home.folder / home.top
    if home.top == _OURS or (package.is_dir() and not home.lone):
        package_files = list(_files_in(package))
    else:
        package_files = [
            path for source in found.values() for path in _named_in(home.folder, source)
        ]
    return {
        path.relative_to(root).as_posix(): path
        for root, paths in ((_FOLDER, installed), (home.folder, package_files))
        for path in paths
    }


def _files_in(folder: Path, nested: bool = True) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders; include nested packages if `nested`."""
    for path in sorted(folder.iterdir()):
        if path.is_file():
            yield path
        # Links are not followed, since they may form a circle.
        elif not path.is_dir() or path.is_symlink() or path.name == "__pycache__":
            continue
        elif nested or not (path / "__init__.py").exists():
            yield from _files_in(path, nested)


def _named_in(folder: Path, source: Path) -> Iterator[Path]:
    """Yield the data files and modules below a folder that a source names in its strings."""
    _, syntax = _read(source)
    for text in syntax.strings if syntax and source.is_relative_to(folder) else ():
        for name in (text, text.replace(".", "/") + ".py"):
            with suppress(OSError, ValueError):  # most strings are not valid paths
                path = folder / name
                # Links are resolved of files only, since most strings name none.
                if path.is_file() and (file := path.resolve()).is_relative_to(folder):
                    yield file


@cache
def _read(path: Path) -> tuple[bytes, Syntax | None]:
    """Return the bytes of a source, equal on every system, and its syntax if it can be parsed."""
    source = _content(path)
    try:
        return source, read_syntax(source)
    except (SyntaxError, ValueError):  # syntax of a newer Python, or not a source
        return source, None


@cache
def _content(path: Path) -> bytes:
    """Return the bytes of a file, for a source with uniform line ends."""
    content = path.read_bytes()
    # Git converts line ends on Windows; the digest must not depend on the platform.
    return content.replace(b"\r\n", b"\n") if path.suffix == ".py" else content


def _is_table(path: Path) -> bool:
    """Return True if a source contains constants only: it uses no name that it does not bind."""
    _, syntax = _read(path)
    lazily = {"__future__", ".annotations"}  # the one import that every source has
    return syntax is not None and syntax.words - lazily <= syntax.bound


@cache
def _module_file(folder: Path, name: str) -> Path | None:
    """Return the source of a module below a folder, or None if it is missing or compiled."""
    base = folder.joinpath(*name.split("."))
    if (package := base / "__init__.py").is_file():
        return package
    if any(base.with_name(base.name + suffix).is_file() for suffix in EXTENSION_SUFFIXES):
        return None  # Python prefers an extension module to a source of the same name
    source = base.with_name(f"{base.name}.py")
    return source if source.is_file() else None

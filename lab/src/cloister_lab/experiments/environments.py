"""Other packages in environments of their own, made once in the user's cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_SECONDS = 3600  # of one program, or one step of making an environment


def python_with(
    what: str, packages: Sequence[str], modules: str, *, fetch: bool, version: tuple[int, ...] = ()
) -> Path | str:
    """Return the Python of an environment with some packages, or why there is none.

    Parameters
    ----------
    packages : sequence of str
        Pinned; the first names the folder in the cache.
    modules : str
        What must be importable in it, separated by commas.
    fetch : bool
        Make it where it is missing.
    version : tuple of int, optional
        Of Python, where it must be one; else that of this process.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "cloister" / packages[0].replace("==", "-")
    python = folder / "bin" / "python"
    if (folder / "whole").exists():
        return python
    if not fetch:
        return f"{what}'s environment is not made by the small version"
    found: str | None = sys.executable
    if version and sys.version_info[:2] != version:
        found = shutil.which("python{}.{}".format(*version))
    if found is None:
        return f"{what} needs Python {'.'.join(map(str, version))}, which is not here"
    try:
        for command in (
            [found, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", *packages],
            [str(python), "-c", f"import {modules}"],
        ):
            subprocess.run(command, capture_output=True, check=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{what}'s environment could not be made: {type(error).__name__}"
    (folder / "whole").touch()
    return python


def json_of(command: Sequence[str], environment: dict[str, str]) -> dict[str, Any] | str:
    """Return the last line that a program writes, or why it wrote none."""
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        if done.returncode:
            last = (done.stderr.strip() or "no message").splitlines()[-1]
            return f"{Path(command[0]).name} ended with {done.returncode}: {last}"
        document: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return f"{Path(command[0]).name} gave no answer: {type(error).__name__}"
    return document


def run_script(
    python: Path | str, script: str | None, arguments: Sequence[str], arrays: Mapping[str, Any]
) -> dict[str, Any] | str:
    """Return what a script of ours says of some arrays under another Python, with one thread.

    Parameters
    ----------
    python : Path or str
        A text is why there is none, and is returned.
    arguments : sequence of str
        FILE stands for the path of an archive of the arrays.
    """
    if isinstance(python, str):
        return python
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "problem.npz"
        np.savez(file, **arrays)
        given = [str(file) if each == "FILE" else each for each in arguments]
        command = [str(python), "-P", str(script), *given]
        return json_of(command, {**os.environ, "OMP_NUM_THREADS": "1"})

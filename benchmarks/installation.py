"""How much disk the package takes for each role, beyond five libraries that most analysts have.

    python benchmarks/installation.py [SOURCE]

Prints the table of docs/results/benchmarks.md. Each role is installed into an environment of its
own, without a cache; SOURCE is the folder or wheel to install, by default this checkout. Sizes are
those of files under site-packages, without pip.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROLES = {
    "base": "",
    "desk, with pictures": "[pictures]",
    "silo or coordinator": "[service]",
    "console, with pictures": "[service,pictures]",
}
FIVE = ("numpy", "scipy", "scikit_learn", "sklearn", "pandas", "pyarrow")
_NEEDED_BY_FIVE = (
    "joblib",
    "threadpoolctl",
    "dateutil",
    "python_dateutil",
    "six",
    "tzdata",
    "pytz",
)
_TOOLS = ("pip", "setuptools", "wheel", "pkg_resources", "_distutils_hack")


def megabytes(folder: Path) -> tuple[float, float]:
    """Return the size of the five libraries with what they need, and of all others."""
    sizes = {True: 0, False: 0}
    for entry in folder.iterdir():
        name = entry.name.split("-")[0].split(".")[0]
        if name in _TOOLS:
            continue
        files = entry.rglob("*") if entry.is_dir() else [entry]
        sizes[name in (*FIVE, *_NEEDED_BY_FIVE)] += sum(f.stat().st_size for f in files)
    return sizes[True] / 1e6, sizes[False] / 1e6


def main() -> None:
    """Install each role and print one row of it."""
    source = sys.argv[1] if len(sys.argv) > 1 else str(Path(__file__).parents[1])
    print("| Role | `pip install` | Beyond the five, MB |\n|---|---|---|")
    for role, extra in ROLES.items():
        with tempfile.TemporaryDirectory() as home:
            venv.create(home, with_pip=True)
            python = f"{home}/bin/python"
            command = (python, "-m", "pip", "install", "--quiet", "--no-cache-dir", source + extra)
            subprocess.run(command, check=True)
            (folder,) = Path(home).glob("lib/python*/site-packages")
            _, others = megabytes(folder)
            print(f"| {role} | `'cloister{extra}'` | {others:.0f} |", flush=True)


if __name__ == "__main__":
    main()

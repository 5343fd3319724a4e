"""Make the notebooks of the examples from their scripts, and run them.

python scripts/make_notebooks.py [NAME ...]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def main() -> None:
    """Write a notebook beside each script, with what it prints and draws."""
    os.environ.pop("MPLBACKEND", None)  # pictures go into the notebook
    named = [EXAMPLES / f"{name}.py" for name in sys.argv[1:]]
    for script in named or sorted(EXAMPLES.glob("*.py")):
        notebook = jupytext.read(script)
        notebook.metadata = {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
        }
        NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
        for index, cell in enumerate(notebook.cells):
            cell.id = f"cell-{index}"  # the same in every run
            cell.metadata.clear()
        nbformat.write(notebook, script.with_suffix(".ipynb"))
        print(f"written  {script.with_suffix('.ipynb').name}")  # a script says what it wrote


if __name__ == "__main__":
    main()

"""The examples run, as notebooks and as scripts; both are one text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient
from traitlets.config import Config

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ("hospitals", "retailers", "banks", "credit_vote")
PATIENCE = 1800  # seconds, against hanging alone


@pytest.fixture(autouse=True)
def no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an example draw without a screen."""
    monkeypatch.setenv("MPLBACKEND", "agg")


def cells(notebook: nbformat.NotebookNode) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def test_every_example_is_a_script_and_a_notebook() -> None:
    for suffix in (".py", ".ipynb"):
        assert {path.stem for path in EXAMPLES.glob(f"*{suffix}")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_script_and_notebook_are_one_text(name: str) -> None:
    script = jupytext.read(EXAMPLES / f"{name}.py")
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    assert cells(script) == cells(notebook)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_what_it_printed(name: str) -> None:
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    assert any("image/png" in out.get("data", {}) for out in outputs), "a picture"
    assert any(out.output_type == "stream" for out in outputs)
    assert not any(out.output_type == "error" for out in outputs)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_runs_and_prints_its_bill(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:cloister", str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert "spent" in done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["hospitals"])
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    # sockets in a folder: a port that is free now may be another test's when the kernel starts
    with TemporaryDirectory(prefix="ipc-") as folder:  # of a short name, as sockets need it
        client = NotebookClient(
            notebook,
            config=Config(KernelManager={"transport": "ipc", "ip": f"{folder}/s"}),
            kernel_name="python3",
            timeout=PATIENCE,
            startup_timeout=PATIENCE,
            resources={"metadata": {"path": tmp_path}},
        )
        client.execute()
    assert any("spent" in str(cell.get("outputs", "")) for cell in notebook.cells)

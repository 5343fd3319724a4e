"""A file that is nested too deeply for its parser is one sentence, as any other malformed file."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloister.cli import main

TOML, JSON = "a = " + 100_000 * "[", 200_000 * "["
COMMANDS = {
    "schema": ("schema validate {file}", TOML, ".toml"),
    "schema in JSON": ("schema validate {file}", JSON, ".json"),
    "settings": ("config check {file}", TOML, ".toml"),
    "reading": ("check {table} --schema {schema} --reading {file}", TOML, ".toml"),
    "invitation": ("join {file} --root {folder}", JSON, ".json"),
    "grant": ("federation enroll install {file} --keys {folder}", JSON, ".json"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_it_is_one_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, text, ending = COMMANDS[name]
    file, schema, table = (tmp_path / n for n in (f"deep{ending}", "s.toml", "t.csv"))
    file.write_text(text)
    file.chmod(0o600)
    schema.write_text(
        'dataset = "d"\nunit = "row"\n[[columns]]\nname = "x"\ntype = "number"\nmin = 0\nmax = 1\n'
    )
    table.write_text("x\n0.5\n")
    places = {"file": file, "schema": schema, "table": table, "folder": tmp_path / "keys"}
    code = main([part.format(**places) for part in command.split()])
    said = capsys.readouterr().err
    assert code in (3, 4), said
    assert "Recursion" not in said
    assert "unexpected" not in said
    assert said.startswith(("error: ", "cloister: "))

"""Whatever the documentation shows as a command or as Python is executed here.

Blocks of one page run in order, in one namespace and one empty folder. What a block is follows from
its info string:

- ``python``: executed;
- anything with ``title="NAME"``: written to the file NAME, for later blocks to import or read;
- ``bash``: lines that begin with ``cloister`` go through the command line in this process; a
  comment ``# exits with N`` says which exit code is expected instead of 0;
- ``text``: output, shown only; behind a line ``<!-- exact -->`` it is compared with what the block
  before it printed;
- everything else: shown only.

Commands that are only shown, because they need other machines or hours, must still be commands.

By chance an audit shows under a tenth of a true claim, and exits with 8: that of FastLloyd with
1,200 runs once in 10^16, that of the histogram with 1,000 once in 10^21. Of 400, one in 6,600 did.
"""

from __future__ import annotations

import importlib
import io
import re
import shlex
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from _pytest.mark import ParameterSet

ROOT = Path(__file__).parents[2]
IN_REFERENCE = ("lab", "step-level-loop", "test-your-transport")
PAGES = sorted(
    path
    for path in (
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("docs/how-to/*.md"),
        *ROOT.glob("docs/gallery/*.md"),
        *(ROOT / f"docs/reference/{name}.md" for name in IN_REFERENCE),
        ROOT / "README.md",
    )
    if path.exists()
)
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)
EXITS = re.compile(r"# exits with (\d+)")
INPUTS = (".csv", ".xlsx", ".gz", ".parquet", ".toml", ".json", ".db", ".py")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    info: str
    code: str
    line: int
    exact: bool = False

    @property
    def language(self) -> str:
        return self.info.split()[0] if self.info else ""

    @property
    def title(self) -> str | None:
        found = re.search(r'title="([^"]+)"', self.info)
        return found.group(1) if found else None

    def commands(self) -> Iterator[tuple[list[str], int]]:
        """Yield the arguments and the expected exit code of each call of ``cloister``."""
        for line in self.code.replace("\\\n", " ").splitlines():
            if line.startswith("cloister "):
                expected = EXITS.search(line)
                yield (
                    shlex.split(line, comments=True)[1:],
                    int(expected.group(1)) if expected else 0,
                )


def blocks(text: str) -> Iterator[Block]:
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start("body")) + 1
        exact = text[: found.start()].rstrip().endswith("<!-- exact -->")
        yield Block(found["info"].strip(), textwrap.dedent(found["body"]), line, exact)


def run_command(argv: list[str]) -> int:
    from cloister.cli import main

    try:
        return int(main(argv) or 0)
    except SystemExit as end:
        return int(end.code or 0)


def same_words(left: str, right: str) -> bool:
    """Compare outputs but for blanks and for where lines break."""
    return left.split() == right.split()


def missing_inputs(argv: list[str]) -> list[str]:
    """Return files a command would read that do not exist; what follows ``--out`` is written."""
    read = [word for before, word in zip(["", *argv], argv, strict=False) if before != "--out"]
    return [word for word in read if word.endswith(INPUTS) and not Path(word).exists()]


def _runs(page: Path) -> ParameterSet:
    """Return a page as a case; audits of enough runs take as long as all other pages."""
    marks = [pytest.mark.nightly] if page.name == "audit.md" else []
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


@pytest.mark.parametrize("page", map(_runs, PAGES))
def test_every_block_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    before = set(sys.modules)
    printed = ""
    try:
        for block in blocks(page.read_text(encoding="utf-8")):
            where = f"{page.relative_to(ROOT)}:{block.line}"
            stdout = io.StringIO()
            if block.exact:
                assert same_words(printed, block.code), f"{where} is not what was printed"
            elif block.title:
                Path(block.title).write_text(block.code, encoding="utf-8")
                importlib.invalidate_caches()
            elif block.language == "python":
                with redirect_stdout(stdout):
                    exec(compile("\n" * (block.line - 1) + block.code, page, "exec"), vars(module))
            elif block.language == "bash":
                for argv, expected in block.commands():
                    # The README may show a user's own files; a page of the manual may not.
                    if page.name == "README.md" and missing_inputs(argv):
                        continue
                    with redirect_stdout(stdout):
                        code = run_command(argv)
                    assert code == expected, f"{where}: cloister {shlex.join(argv)}"
            printed = stdout.getvalue() or printed
            sys.stdout.write(f"--- {where}\n{stdout.getvalue()}")
    finally:
        for name in set(sys.modules) - before:  # modules that the page wrote itself
            if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


SHOWN = (*PAGES, *sorted(ROOT.glob("docs/results/*.md")))


@pytest.mark.parametrize("page", SHOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_command_that_is_only_shown_exists_with_its_options(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "bash":
            continue  # is executed
        for argv, _ in block.commands():
            where = f"{page.relative_to(ROOT)}:{block.line}: cloister {shlex.join(argv)}"
            assert understood(argv), where


def understood(argv: list[str]) -> bool:
    """Parse a command and do nothing."""
    from cloister.cli import _parser

    try:
        _parser(argv).parse_args(argv)
    except SystemExit:
        return False
    return True


def test_an_option_that_is_not_there_is_noticed() -> None:
    command = "jobs submit --config a.toml --schema s.toml --silos a,b --k 2 --epsilon 1"
    assert understood(shlex.split(f"{command} --nominal-n 30"))
    assert not understood(shlex.split(f"{command} --nominal 30 --noise 0"))
    assert not understood(["no-such-command"])


def test_the_step_level_page_shows_the_whole_loop() -> None:
    text = (ROOT / "docs" / "reference" / "step-level-loop.md").read_text(encoding="utf-8")
    code = "".join(block.code for block in blocks(text) if block.language == "python")
    for call in ("MaskedClient(", "Server(", ".step(", ".update("):
        assert call in code


def test_the_command_line_page_names_every_command_and_exit_code() -> None:
    from cloister.cli import COMMANDS, EXIT_CODES

    text = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"\n## {command}\n" in text
    for error, code in EXIT_CODES.items():
        assert re.search(rf"^\| {code} \| .*`{error.__name__}`", text, re.MULTILINE)


def test_a_broken_block_is_noticed() -> None:
    page = (
        '# T\n\n```python title="a.py"\nx = 1\n```\n\n- item\n\n    ```python\n    1 / 0\n    ```\n'
    )
    first, second = blocks(page)
    assert first.title == "a.py"
    assert second.code == "1 / 0\n"
    with pytest.raises(ZeroDivisionError):
        exec(second.code, {})


def test_commands_are_split_continued_and_carry_their_exit_code() -> None:
    block = Block("bash", "pip install x\ncloister a \\\n  --b c  # exits with 5\n", 1)
    assert list(block.commands()) == [(["a", "--b", "c"], 5)]


def test_links_of_the_readme_hold_wherever_it_is_shown() -> None:
    """A package index shows it without the repository: each link is whole, and names a file."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    home = about["urls"]["Repository"]
    roots = (
        f"{home}/blob/main/",
        home.replace("//github.com", "//raw.githubusercontent.com") + "/main/",
    )
    links = re.findall(r"\]\(([^)#]+)", text)
    ours = [link for link in links if link.startswith(roots)]
    assert all(link.startswith("https://") for link in links)
    assert len(ours) > 20
    for link in ours:
        assert (ROOT / link.partition("/main/")[2]).exists(), link
    assert f"repository-code: {home}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {about['version']}\n" in (ROOT / "CITATION.cff").read_text()
    for page in re.findall(r"\]\(([^)]+)", (ROOT / "docs/llms.txt").read_text(encoding="utf-8")):
        assert (ROOT / "docs" / page).exists(), page

"""The English of the code: docstrings, messages and comments of the rooms that follow the guide."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "cloister"

# Rooms that follow the guide, with the least number of comments per 100 lines of code. It grows.
ROOMS = {
    **dict.fromkeys(("hazmat", "privacy", "protocol", "secagg", "tasks"), 7),
    **dict.fromkeys(("app", "audit", "cli", "console", "core", "data", "estimators"), 5),
    **dict.fromkeys(("federation", "shares"), 5),
}

REFUSED = {
    name: re.compile(pattern, re.IGNORECASE)
    for name, pattern in {
        # "has not signed" is a tense; "a silo that has not" and "has not the key" are not English.
        "has not": r"\b(?:has|have|had) not\b(?=\s*(?:[.,;:)]|$|(?:an?|the|any|its|their|it)\b))",
        "none of": r"\bnone of\b",
        "told": r"\btold\b",
        "word for word": r"\bword for word\b",
        "by what": r"\bby what\b",
        "of what": r"\bof what\b",
        "worth": r"\bworth\b",
        "says": r"\b(?:say|says|said)\b",
        "speaks": r"\bspeaks?\b",
        "lies": r"\bl(?:ies|ie|ay)\b",
        "stands": r"\b(?:stands?|stood)\b(?! for\b)",
        "whoever": r"\bwhoever\b",
        "who has": r"\bwho (?:has|have)\b",
        "be who": r"\bbe who\b",
        "drowned": r"\bdrown(?:ed|s)?\b",
        "walls": r"\bwalls?\b",
        "in words": r"\bin words\b",
        "is of": r"\b(?:is|are) of\b",
        "such as may": r"\bsuch as (?:may|can)\b",
        "at once": r"\bat once\b",
        "of its own": r"\bof (?:its|their|his|one's) own\b",
        "for good": r"\bfor good\b",
        "beside": r"\bbesides?\b",
        "thereof": r"\bthereof\b",
    }.items()
}

OPENING = re.compile(
    r"(?:Return|Tell|Say|Show|Give|Check|Find|Count|Read|Write|Name) (?:what|which|how|whether|who"
    r"|where)\b"
    r"|(?:What|Which|How|Whether|Who|Whom|Whose|Where|By what|Of what)\b"
)

MOST_WORDS = 25
WORD = re.compile(r"\S*[A-Za-z]{2,}\S*|_")
# Tables, examples, references and blocks of which every line is indented.
LITERAL = re.compile(r"====|>>>|^\.\. \[|\A(?:    .*\n?)+\Z|^References$", re.MULTILINE)
# The head of a section, a parameter with its type, an exception, or an item of a list.
ENTRY = r"^-{3,}$|^[\w`*, ]+ : .*$|^[A-Z]\w*(?:Error|Exceeded)(?:, \w+)*$|^(?:- |\d\. )"

# (file below the package, name of the rule): how many. Each needs a reason; below 30 in all.
ALLOWED: dict[tuple[str, str], int] = {
    # Names and evidence in published audits (docs/results/audit.md), which such a change would age.
    ("audit/checks.py", "of what"): 1,
    ("audit/noise_laws.py", "beside"): 1,
    ("audit/pairs.py", "beside"): 2,
    ("audit/runs.py", "beside"): 1,
    # The name of a public field.
    ("app/payment.py", "says"): 1,
    # The name of a field of tasks, which plans and results hold.
    ("tasks/synthesis/synthesise.py", "walls"): 1,
    ("tasks/tables/axes.py", "walls"): 1,
    ("tasks/tables/tabulate.py", "walls"): 1,
    # The title of a question on the page.
    ("console/questions.py", "by what"): 1,
}


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _files(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring."""
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of every other string with a space in it; values count as '{}'."""
    tree = _parsed(path)
    seen: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            seen.add(id(node.value))  # a docstring, or a string that is never read
        if isinstance(node, ast.JoinedStr):
            parts = []
            for part in node.values:
                seen.add(id(part))
                parts.append(str(part.value) if isinstance(part, ast.Constant) else "{}")
            yield node.lineno, "".join(parts)
    for node in ast.walk(tree):
        text = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and id(node) not in seen and " " in text.strip():
            yield node.lineno, text


def without_quotes(text: str) -> str:
    """Cut code and quotations out of a text."""
    return re.sub(r"``[^`]*``|`[^`\n]*`|\"[^\"\n]*\"|'[^'\n]{2,}'", "_", text)


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a docstring without its headings, literal blocks and references."""
    for paragraph in re.split(r"\n\s*\n", without_quotes(text)):
        if LITERAL.search(paragraph):
            continue
        for piece in re.split(ENTRY, paragraph, flags=re.MULTILINE):
            yield from re.split(r"(?<=[.?!])\s+", " ".join(piece.split()))


def refused(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yield rule, line and the words around each refused wording of a file."""
    for line, text in (*docstrings(path), *messages(path)):
        bare = " ".join(without_quotes(text).split())
        for name, pattern in REFUSED.items():
            for match in pattern.finditer(bare):
                yield name, line, bare[max(0, match.start() - 40) : match.end() + 40]
    for line, text in docstrings(path):
        if OPENING.match(text):
            yield "opening", line, text.splitlines()[0]


def counts(path: Path) -> tuple[int, int]:
    """Return the numbers of comments and of lines of code; a docstring is neither."""
    source = path.read_text(encoding="utf-8")
    skipped: set[int] = set()
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    comments, code = 0, set()
    layout = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            # A comment for a tool gives no reader a reason.
            comments += not re.match(r"#\s*(?:noqa|type:|pragma|fmt:|nosec)", token.string)
        elif token.type not in layout:
            code.update(range(token.start[0], token.end[0] + 1))
    return comments, len(code - skipped)


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_and_messages_use_no_refused_wording(room: str) -> None:
    found: dict[tuple[str, str], list[str]] = {}
    for path in _files(room):
        for rule, line, text in refused(path):
            key = (path.relative_to(ROOT).as_posix(), rule)
            found.setdefault(key, []).append(f"{key[0]}:{line}: {rule}: {text}")
    bad = [
        text for key, texts in found.items() if len(texts) > ALLOWED.get(key, 0) for text in texts
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("room", ROOMS)
def test_sentences_are_short(room: str) -> None:
    long = [
        f"{path.relative_to(ROOT).as_posix()}:{line}: {sentence}"
        for path in _files(room)
        for line, text in docstrings(path)
        for sentence in sentences(text)
        if len(WORD.findall(sentence)) > MOST_WORDS
    ]
    assert not long, "\n".join(long)


@pytest.mark.parametrize("room", ROOMS)
def test_comments_give_reasons_often_enough(room: str) -> None:
    comments, code = (sum(column) for column in zip(*map(counts, _files(room)), strict=True))
    assert 100 * comments >= ROOMS[room] * code, (
        f"{room}: {comments} comments, {code} lines of code"
    )


def test_exceptions_stay_few() -> None:
    assert sum(ALLOWED.values()) < 30

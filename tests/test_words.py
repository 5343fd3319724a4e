"""The documentation keeps to the terms of the field, to a number of words and to its questions.

Proofs, decisions and results are not looked at. Code, quotations and addresses are left out of
what is searched, and a place that needs a refused word is in `ALLOWED`, with its words around.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="docs are not with the tests")
APART = ("adr", "proofs", "results")
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).parts[0] not in APART)
READ = (*PAGES, ROOT / "README.md")
MOST_WORDS = 42_000
MOST_ALLOWED = 30
LONGEST = 25

REFUSED = (
    r"(?:has|have|had) not(?! (?:been|yet|\w+(?:ed|en|wn|ade|ent|ept|id)\b))",
    r"none of",
    r"told",
    r"word for word",
    r"by what",
    r"of what",
    r"what it is worth",
    r"sa(?:y|ys|id|ying)",
    r"spe?(?:ak|aks|oke)",
    r"lies",
    r"stands?",
    r"stood",
    r"who(?:m|so)?ever",
    r"whatever",
    r"who (?:has|have|is told)",
    r"be who",
    r"drown\w*",
    r"walls?",
    r"in words",
    r"(?:is|are) of",
    r"such as may",
    r"at once",
    r"of (?:its|their|your|our|his|her) own",
    r"for good",
    r"besides?",
    r"(?:there|where|here)of",
    r"look-alike",
)
WORD = re.compile(rf"\b(?:{'|'.join(REFUSED)})\b", re.IGNORECASE)
ALLOWED: dict[str, tuple[str, ...]] = {}
"""By page, the lines that may hold a refused word."""

FENCE = re.compile(r"^ *```.*?^ *```[ ]*$", re.MULTILINE | re.DOTALL)
DIRECTIVE = re.compile(r"^:::.*\n(?: +.*\n)*|<!--.*?-->", re.MULTILINE)
OTHER = re.compile(r"`[^`\n]*`|(?<=\])\([^)]*\)|\"[^\"\n]*\"")
SENTENCE = re.compile(r"(?<=[.:;?!])[*)]*\s+|\n\s*\n|\n(?=\s*(?:[-*|#!]|\d+\.)\s?)")

QUESTIONS = {
    "How do I read a German CSV?": ("decimal", "thousands", "spellings"),
    "What are bounds and `nominal_n`, and how do I choose them?": ("codebook", "public number"),
    "What is epsilon, and which one do I choose?": ("probability", "attacker"),
    "How exact will my answer be?": ("cloister plan",),
    "How many records do I need?": ("--nominal-n",),
    "Does the treatment differ?": ("log-rank",),
    "How long do people live?": ("median",),
    "Which groups are there, and are they real?": ("verdict_",),
    "How good is this model?": ("Area under the curve",),
    "Can I give synthetic data to a partner?": ("findings",),
    "How do I start with two other hospitals?": ("federation init",),
    "What does the coordinator see?": ("masked vectors",),
    "What do I approve?": ("jobs show",),
    "What if a silo drops out?": ("min_silos",),
    "How do I upgrade?": ("budget migrate",),
    "What has my data set spent?": ("budget show",),
    "How do I verify a report?": ("model.json.signed",),
    "What leaks if a party cheats?": ("exact vectors",),
    "How do I write my own task?": ("def rows",),
    "What can it not do?": ("free text",),
}
"""What the first page asks, with words that the section of its answer holds."""


@cache
def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose(page_text: str) -> str:
    """Return what is neither code nor quotation nor the address of a link."""
    return OTHER.sub("X", DIRECTIVE.sub("", FENCE.sub("", page_text)))


def slug(heading: str) -> str:
    """Return the name by which mkdocs and GitHub link a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading)
    letters = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", letters).strip().lower())


@cache
def sections(page: Path) -> dict[str, str]:
    """Return the text below each heading of a page, with code and smaller headings."""
    code = [found.span() for found in FENCE.finditer(text(page))]
    headings = [
        found
        for found in re.finditer(r"^(#+) (.+)$", text(page), re.MULTILINE)
        if not any(start <= found.start() < end for start, end in code)
    ]
    ends = [*(found.start() for found in headings[1:]), len(text(page))]
    found = zip(headings, ends, strict=True)
    return {slug(heading[2]): text(page)[heading.end() : end] for heading, end in found}


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_refused_word(page: Path) -> None:
    allowed = ALLOWED.get(str(page.relative_to(ROOT)), ())
    found = [
        line.strip()
        for line in prose(text(page)).splitlines()
        if WORD.search(line) and not any(part in line for part in allowed)
    ]
    assert not found


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_sentence_is_short(page: Path) -> None:
    long = [
        sentence
        for sentence in SENTENCE.split(prose(text(page)))
        if len(re.findall(r"\S*\w\S*", sentence)) > LONGEST and not sentence.startswith("|")
    ]
    assert not long


def test_few_places_are_excepted_and_each_is_needed() -> None:
    assert sum(map(len, ALLOWED.values())) < MOST_ALLOWED
    for page, parts in ALLOWED.items():
        lines = prose(text(ROOT / page)).splitlines()
        for part in parts:
            assert any(part in line and WORD.search(line) for line in lines), part


def test_the_documentation_has_at_most_so_many_words() -> None:
    assert sum(len(text(page).split()) for page in PAGES) <= MOST_WORDS


def test_every_task_is_named_where_intervals_are_explained() -> None:
    from cloister.tasks import installed

    named = set(re.findall(r"`([a-z0-9-]+)`", text(DOCS / "uncertainty.md")))
    assert not installed().keys() - named


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_leads_from_the_first_page_to_its_answer(question: str) -> None:
    links = dict(re.findall(r"\[([^\]]+\?)\]\(([^)]+)\)", text(DOCS / "index.md")))
    assert links.keys() >= QUESTIONS.keys()
    path, _, heading = links[question].partition("#")
    answer = sections(DOCS / path)[heading]
    for words in QUESTIONS[question]:
        assert words in answer


def test_refused_words_and_long_sentences_are_noticed() -> None:
    for word in ("told", "It lies there", "has not enough", "of its own", "besides"):
        assert WORD.search(prose(f"Text {word}."))
    for fine in (
        "`told`",
        '"told"',
        "[a](told.md)",
        "\n```text\ntold\n```\n",
        "has not been",
        "standard",
    ):
        assert not WORD.search(prose(f"Text {fine} text."))
    first, second = SENTENCE.split(f"One {'word ' * 26}end. Two.")
    assert len(first.split()) > LONGEST >= len(second.split())
    assert slug("Choose bounds and `nominal_n`") == "choose-bounds-and-nominal_n"
    assert all(a < b for a, b in pairwise(PAGES))

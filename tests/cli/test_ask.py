"""``cloister ask``: from dirty files to an answer, in a dialogue or without a person."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloister.cli import ask as command
from cloister.cli import main
from cloister.core.files import toml_of
from cloister.data.schema import Schema

BOOK = """name,type,min,max,categories
days,number,0,2500,
dead,boolean,,,
sex,category,,,female|male
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three files, each in another format, and a codebook."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOISTER_LEDGER", str(tmp_path / "ledger.db"))
    rng = random.Random(0)
    rows = [
        [(rng.uniform(0, 2000), rng.random() < 0.5, rng.randrange(2)) for _ in range(300)]
        for _ in range(3)
    ]
    german = [
        f"{days:,.1f};{'NJ'[dead]};{('female', 'male')[sex]}".translate({44: 46, 46: 44})
        for days, dead, sex in rows[0]
    ]
    english = [f'{"FM"[sex]},"{days:,.1f}",{("no", "yes")[dead]}' for days, dead, sex in rows[1]]
    french = [
        f"{('non', 'oui')[dead]}\t{('female', 'male')[sex]}\t{days:.1f}".replace(".", ",")
        for days, dead, sex in rows[2]
    ]
    for name, encoding, lines in (
        ("klinik.csv", "latin-1", ["days;dead;sex", *german]),
        ("clinic.csv", "utf-8-sig", ["sex,days,dead", *english]),
        ("clinique.csv", "utf-16", ["dead\tsex\tdays", *french]),
    ):
        Path(name).write_bytes("\n".join(lines).encode(encoding))
    Path("book.csv").write_text(BOOK)
    return ["klinik.csv", "clinic.csv", "clinique.csv"]


ROLES = ["--question", "survival", "--set", "time=days", "--set", "event=dead"]
PAID = ["--epsilon", "5", "--cap-epsilon", "9", "--nominal-n", "900"]


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that sets the answers of a person, and returns the questions heard."""

    def answering(*answers: str) -> list[str]:
        heard: list[str] = []
        left = iter(answers)
        monkeypatch.setattr(command, "ask", lambda text: (heard.append(text), next(left))[1])
        return heard

    return answering


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["ask", *args])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_three_formats_end_in_one_answer(files: list[str], capsys: Any) -> None:
    code, text, _ = run(capsys, *files, *ROLES, *PAID, "--codebook", "book.csv", "--yes", "--json")
    assert code == 0
    document = json.loads(text)
    assert document["columns"] == ["days", "dead"]  # another column would add noise
    assert abs(document["results"]["survival"][0][0] - 1) < 0.2
    reading = toml_of(Path("answer/reading.toml").read_text())
    assert reading["klinik.csv"]["decimal"] == reading["clinique.csv"]["decimal"] == ","
    assert reading["clinic.csv"] == {"thousands": ","}
    assert reading["clinique.csv"]["columns"]["dead"]["spellings"]["true"] == ["oui"]
    assert Schema.load("answer/schema.toml").names == ("days", "dead", "sex")


def test_a_person_answers_five_questions_at_most(
    files: list[str], capsys: Any, person: Callable[..., list[str]]
) -> None:
    given = ["--codebook", "book.csv", "--cap-epsilon", "9"]
    heard = person("survival", "days", "dead", "", "5", "900", "yes")
    code, text, _ = run(capsys, *files, *given)
    assert code == 0
    assert len(heard) <= 5 + 2  # and the confirmations of columns and of the price
    assert "It costs epsilon=5" in text


def test_a_guess_needs_a_person(
    files: list[str], capsys: Any, person: Callable[..., list[str]]
) -> None:
    by = [*ROLES, "--set", "by=sex", *PAID, "--codebook", "book.csv"]
    code, _, error = run(capsys, *files, *by, "--yes")
    assert code == 4
    assert "'F', 'M'" in error or "'M', 'F'" in error
    assert not Path("ledger.db").exists()
    heard = person("", "y", "y")
    assert run(capsys, *files, *by)[0] == 0
    assert "clinic.csv" in heard[1]


def test_a_wrong_answer_is_asked_again(
    files: list[str], capsys: Any, person: Callable[..., list[str]]
) -> None:
    said = ["survive", "survival", "day", "days", "dead", "", "0", "5", "some", "900", "no"]
    heard = person(*said)
    code, text, error = run(capsys, *files, "--codebook", "book.csv", "--cap-epsilon", "9")
    assert code == 0
    assert len(heard) == len(said)
    assert "Nothing was spent." in text
    for word in ("survive", "'day'", "'0'", "'some'"):
        assert word in error


def test_settings_that_were_found_are_kept_where_words_are_unknown(
    files: list[str], capsys: Any
) -> None:
    lines = Path("klinik.csv").read_text("latin-1").replace(";m;", ";mann;")
    Path("klinik.csv").write_text(lines.replace(";w;", ";frau;"), "latin-1")
    by = [*ROLES, "--set", "by=sex", *PAID, "--codebook", "book.csv", "--yes"]
    code, _, error = run(capsys, *files, *by)
    assert code == 4
    assert "--reading answer/reading.toml" in error
    found = toml_of(Path("answer/reading.toml").read_text())
    assert found["clinique.csv"]["decimal"] == ","
    assert not Path("ledger.db").exists()


def test_a_column_that_one_file_has_is_left_out_with_the_remedy(
    files: list[str], capsys: Any
) -> None:
    lines = Path("clinic.csv").read_text("utf-8-sig").splitlines()
    more = [f"{lines[0]},level,floor", *(f"{x},1,2" for x in lines[1:])]
    Path("clinic.csv").write_text("\n".join(more))
    given = [*files, "--question", "describe", *PAID, "--codebook", "book.csv", "--yes"]
    _, _, error = run(capsys, *given)
    for name in ("level", "floor"):
        assert f"{name}: not in klinik.csv, clinique.csv; it is left out." in error
    assert error.count("set 'header' of the column for that file in --reading") == 1


def test_a_column_with_another_header_is_named_and_can_be_renamed(
    files: list[str], capsys: Any
) -> None:
    lines = (
        Path("clinic.csv").read_text("utf-8-sig").replace("sex,days,dead", "S.ex,days,Status", 1)
    )
    Path("clinic.csv").write_text(lines)
    given = [*files, "--question", "describe", *PAID, "--codebook", "book.csv", "--yes"]
    code, _, error = run(capsys, *given)
    assert code == 3
    assert "sex: not in clinic.csv (it has 'S.ex')" in error
    assert "dead: not in clinic.csv; sex" in error
    assert '["clinic.csv".columns."sex"] and header = "S.ex"' in error
    renamed = ("dead", "Status"), ("sex", "S.ex")
    Path("known.toml").write_text(
        "".join(f'["clinic.csv".columns.{name}]\nheader = "{own}"\n' for name, own in renamed)
    )
    run(capsys, *given, "--reading", "known.toml")
    found = toml_of(Path("answer/reading.toml").read_text())
    assert found["clinic.csv"]["columns"]["dead"]["header"] == "Status"


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("settings", ["", '["clinic.csv".columns.days]\nabsent = ["-1"]\n'])
def test_headers_in_another_case_are_found_and_told(
    files: list[str], capsys: Any, first: int, settings: str
) -> None:
    lines = Path("clinic.csv").read_text("utf-8-sig").replace("sex,days,dead", "Sex,DAYS,dead", 1)
    Path("clinic.csv").write_text(lines)
    words = '["clinic.csv".columns.sex.spellings]\nfemale = ["F"]\nmale = ["M"]\n'
    Path("known.toml").write_text(words + settings)
    order = [*files[first:], *files[:first]]
    given = [*order, "--question", "describe", *PAID, "--codebook", "book.csv", "--yes"]
    code, text, error = run(capsys, *given, "--reading", "known.toml")
    assert code == 0, error
    assert "clinic.csv, column 'days': header = \"DAYS\"" in text
    found = toml_of(Path("answer/reading.toml").read_text())["clinic.csv"]["columns"]
    assert (found["sex"]["header"], found["days"]["header"]) == ("Sex", "DAYS")
    assert found["days"].get("absent", []) == (["-1"] if settings else [])
    assert {*Schema.load("answer/schema.toml").names} == {"days", "dead", "sex"}


@pytest.mark.parametrize(("first", "own"), [("days", "Days,DAYS"), ("daYs", "dAys,x")])
def test_headers_that_may_be_two_columns_are_not_taken_for_one(
    files: list[str], capsys: Any, first: str, own: str
) -> None:
    """Two of one file may be any; and mW and MW differ by case only."""
    german = Path("klinik.csv").read_text("latin-1").replace("days", first, 1)
    Path("klinik.csv").write_text(german)
    Path("clinic.csv").write_text(f"sex,dead,{own}\nF,no,1,2\n")
    Path("clinique.csv").write_text(f"sex,dead,{own}\nF,no,1,2\n")
    given = [*files, "--question", "describe", *PAID, "--codebook", "book.csv", "--yes"]
    code, _, error = run(capsys, *given)
    assert code == 3
    assert f"{first}: not in clinic.csv (it has" in error


def test_a_unit_with_another_header_is_named_and_can_be_renamed(
    files: list[str], capsys: Any
) -> None:
    for name, own, encoding in zip(
        files, ("fall", "Fall.", "FALL"), ("latin-1", "utf-8-sig", "utf-16"), strict=True
    ):
        head, *lines = Path(name).read_text(encoding).splitlines()
        sign = next(sign for sign in ";,\t" if sign in head)
        numbered = [f"{line}{sign}{place}" for place, line in enumerate(lines)]
        Path(name).write_text("\n".join([f"{head}{sign}{own}", *numbered]), encoding)
    words = '["clinic.csv".columns.sex.spellings]\nfemale = ["F"]\nmale = ["M"]\n'
    given = [*files, "--question", "describe", *PAID, "--codebook", "book.csv", "--yes"]
    given += ["--unit", "fall", "--columns", "days,dead,sex", "--reading", "known.toml"]
    Path("known.toml").write_text(words)
    code, _, error = run(capsys, *given)
    assert code == 3
    remedy = '["clinic.csv"]', 'unit_header = "Fall."'
    assert " and ".join(remedy) in error
    Path("known.toml").write_text("\n".join([*remedy, words]))
    code, text, error = run(capsys, *given)
    assert code == 0, error
    assert "clinique.csv, column 'fall': header = \"FALL\"" in text
    found = toml_of(Path("answer/reading.toml").read_text())
    assert found["clinique.csv"]["unit_header"] == "FALL"


@pytest.mark.parametrize("first", [0, 1])
def test_a_header_with_its_unit_is_proposed_whichever_file_is_first(
    files: list[str], capsys: Any, first: int
) -> None:
    lines = Path("clinic.csv").read_text("utf-8-sig").replace(",days,", ",days (d),", 1)
    Path("clinic.csv").write_text(lines)
    order = [*files[first:], *files[:first]]
    given = [*order, "--question", "describe", *PAID, "--codebook", "book.csv", "--yes"]
    code, _, error = run(capsys, *given)
    assert code == 3
    assert "days: not in clinic.csv (it has 'days (d)')" in error


def test_declining_the_price_spends_nothing(
    files: list[str], capsys: Any, person: Callable[..., list[str]]
) -> None:
    person("", "n")
    code, text, _ = run(capsys, *files, *ROLES, *PAID, "--codebook", "book.csv")
    assert (code, Path("ledger.db").exists(), Path("answer").exists()) == (0, False, False)
    assert "Nothing was spent." in text


def test_bounds_are_corrected_in_the_table(
    files: list[str], capsys: Any, person: Callable[..., list[str]]
) -> None:
    person("days=0..9 what=1..2", "days=9..0", "days=0..2500 dead=yes-no", "", "n")
    code, text, error = run(capsys, *files, *ROLES, *PAID)
    assert code == 0
    assert "0 to 2500" in text
    assert "'what=1..2'" in error
    assert "min must be below max" in error


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "--question must be given"),
        (["--question", "survival"], "--set time=... must be given"),
        (ROLES, "--bounds days=LOW..HIGH"),
        (["--question", "describe", "--yes"], "give bounds of a column"),
        ([*ROLES, "--codebook", "book.csv"], "--epsilon must be given"),
        ([*ROLES, *PAID, "--codebook", "book.csv"], "--yes must be given"),
        ([*ROLES, "--set", "by=town"], "column 'town'"),
        ([*ROLES, "--bounds", "days"], "bounds must be"),
    ],
)
def test_without_a_person_an_error_names_the_option(
    files: list[str], capsys: Any, args: list[str], says: str
) -> None:
    code, _, error = run(capsys, *files, *args)
    assert code == 3
    assert says in error
    assert not Path("ledger.db").exists()


def test_the_silo_of_a_record_needs_no_column(files: list[str], capsys: Any) -> None:
    given = [*files, "--question", "cox", *ROLES[2:], "--codebook", "book.csv", "--yes"]
    words = '["clinic.csv".columns.sex.spellings]\nfemale = ["F"]\nmale = ["M"]\n'
    Path("written.toml").write_text(words)
    sites = ["--set", "covariates=sex", "--set", "strata=site", "--reading", "written.toml"]
    code, _, errors = run(
        capsys, *given, *sites, *PAID[2:], "--epsilon", "50", "--cap-epsilon", "50"
    )
    assert code == 0, errors
    assert toml_of(Path("answer/schema.toml").read_text())["columns"][-1]["name"] == "sex"


def test_a_family_is_not_guessed(files: list[str], capsys: Any) -> None:
    """The console starts with counts, the task with a number: neither may be what is meant."""
    given = [*files, "--question", "glm", "--codebook", "book.csv", *PAID, "--yes"]
    code, _, errors = run(capsys, *given, "--set", "target=days")
    assert code == 3
    assert "--set family=poisson or family=gaussian" in errors
    assert not Path("answer/model.json").exists()


def test_files_without_a_common_column_are_refused(files: list[str], capsys: Any) -> None:
    Path("other.csv").write_text("x\n1\n")
    code, _, error = run(capsys, *files, "other.csv", *ROLES)
    assert code == 3
    assert "no column in common" in error


def test_only_the_chosen_columns_are_used(files: list[str], capsys: Any) -> None:
    describe = ["--question", "describe", "--codebook", "book.csv", *PAID]
    # Settings of a column that is not used have no effect.
    Path("written.toml").write_text('["clinic.csv".columns.sex.spellings]\nfemale = ["F"]\n')
    chosen = ["--columns", "dead,days", "--reading", "written.toml"]
    code, _, _ = run(capsys, *files, *describe, *chosen, "--yes")
    assert code == 0
    assert Schema.load("answer/schema.toml").names == ("days", "dead")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("days,number,0,2000,,yes", "'days': missing must be 'drop', 'keep', "),
        ("days,whole,0,2000,,", "'days': type must be 'number', "),
        ("days,number,2000,0,,", "'days': min must be below max"),
    ],
)
def test_a_row_of_a_codebook_that_is_wrong_is_named(
    files: list[str], capsys: Any, row: str, said: str
) -> None:
    """The column was left out without a word."""
    header = "name,type,min,max,categories,missing"
    Path("book.csv").write_text(f"{header}\n{row}\nsex,category,,,female|male,\n")
    _, _, error = run(capsys, *files, "--question", "describe", "--codebook", "book.csv")
    assert f"left out: column {said}" in error
    assert "left out: column 'sex'" not in error


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("sex,height", "columns cannot name 'height'; the files have days, dead, sex."),
        ("dead,size", "size: not in clinic.csv, clinique.csv; omit it from --columns"),
        ("dead", "all files need a column 'sex'"),
    ],
)
def test_a_chosen_column_that_a_file_lacks_is_refused(
    files: list[str], capsys: Any, columns: str, said: str
) -> None:
    if "size" in columns:
        text = Path("klinik.csv").read_text("latin-1").replace("\n", ";1\n")
        Path("klinik.csv").write_text(text.replace("sex;1", "sex;size"), "latin-1")
    table = ["--question", "table1", "--set", "by=sex", "--codebook", "book.csv", *PAID]
    code, _, error = run(capsys, *files, *table, "--columns", columns, "--yes")
    assert code == 3
    assert said in error
    assert not Path("ledger.db").exists()

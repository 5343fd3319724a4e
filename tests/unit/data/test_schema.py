"""The data contract: public, strict, agreed by hash."""

from __future__ import annotations

import hashlib
import json
import math
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import PlanError
from cloister.data.schema import (
    FILL_IN,
    Column,
    Schema,
    catalogue_schema,
    differences,
    init_schema,
    schema_of,
)

NAMES = "columns must be a list of one or more names"
AGE = {"name": "age", "type": "integer", "min": 0, "max": 120, "measure": "years"}
SMOKER = {"name": "smoker", "type": "boolean"}


def schema(*columns: dict[str, Any], **values: Any) -> Schema:
    given_values = {"dataset": "ward", "unit": "row", "columns": columns or (AGE, SMOKER)}
    return Schema(**{**given_values, **values})


def test_digest_is_sha256_of_canonical_json_written_by_hand() -> None:
    text = (
        '{"columns":[{"max":120.0,"measure":"years","min":0.0,"missing":"drop","name":"age",'
        '"out_of_range":"clip","type":"integer"}],"max_rows":2,"max_silos_per_person":1,'
        '"schema":1,"unit":"patient"}'
    )
    made = schema(AGE, unit="patient", max_rows=2)
    assert made.digest() == hashlib.sha256(text.encode()).hexdigest()


def test_digest_leaves_out_the_owners_name_and_nothing_else() -> None:
    base = schema()
    assert schema(dataset="another").digest() == base.digest()
    changed = [
        schema(unit="patient", max_rows=1),
        schema(unit="patient", max_rows=2),
        schema(max_silos_per_person=2),
        schema(SMOKER, AGE),
        schema(AGE),
        *(
            schema({**AGE, **change}, SMOKER)
            for change in (
                {"name": "years"},
                {"type": "number"},
                {"min": 1},
                {"max": 119},
                {"measure": "months"},
                {"missing": "midpoint"},
                {"missing": 3},
                {"out_of_range": "drop"},
            )
        ),
    ]
    assert len({made.digest() for made in (base, *changed)}) == len(changed) + 1


def test_digest_does_not_depend_on_how_a_number_is_written() -> None:
    digests = {schema({**AGE, "min": zero}).digest() for zero in (0, 0.0, -0.0)}
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"min": "from data"}, "must be a public number, got 'from data'"),
        ({"max": None}, "max must be a public number"),
        ({"min": math.nan}, "finite"),
        ({"max": math.inf}, "finite"),
        ({"min": True}, "min must be a valid number"),
        ({"min": 120}, "min must be below max"),
        ({"max": 1e101}, "max must be less than or equal to"),
        ({"max": 1e-101}, "min must be below max"),
        ({"type": "float"}, "'boolean', 'category' or 'date', got 'float'"),
        ({"missing": "mean"}, "or a number in .0.0, 120.0., got 'mean'"),
        ({"missing": 121}, r"a number in .0.0, 120.0., got 121"),
        ({"missing": math.nan}, r"a number in .0.0, 120.0., got nan"),
        ({"missing": True}, "missing must be"),
        ({"out_of_range": "wrap"}, "out_of_range must be 'clip' or 'drop'"),
        ({"colour": "red"}, "'colour' is not a key"),
        ({"name": " age"}, "blanks"),
        ({"name": ""}, "must not be empty"),
    ],
)
def test_a_mistake_in_a_column_is_one_sentence_that_names_it(
    change: dict[str, Any], says: str
) -> None:
    wrong = {**AGE, **change}
    for make in (lambda: Column(**wrong), lambda: schema(SMOKER, wrong)):
        with pytest.raises(PlanError, match=says) as caught:
            make()
        message = str(caught.value)
        assert message.startswith(f"column {wrong['name']!r}: ")
        assert message.endswith(".")
        assert "\n" not in message
        assert caught.value.__suppress_context__


WORK = {"name": "work", "type": "category", "categories": ["private", "state", "none"]}


def test_a_category_stands_for_its_number() -> None:
    column = Column(**WORK)
    assert (column.min, column.max) == (0.0, 2.0)
    assert column.public.levels == 3
    assert Column(**WORK, missing="state").fill_value == 1.0
    assert math.isnan(column.fill_value)
    assert Column(name="smokes", type="boolean").public.categories == ("false", "true")


def test_a_boolean_has_words_that_become_a_boolean_again() -> None:
    """Words of one file are not public, so they name no category."""
    spelt = Column(name="smokes", type="boolean", spellings={"true": ["oui"], "false": ["non"]})
    assert spelt.public == Column(name="smokes", type="boolean").public
    assert spelt.public.is_boolean
    assert schema_of([spelt.public]).columns == (Column(name="smokes", type="boolean"),)
    # A category with these words may be an event, too.
    assert Column(name="smokes", type="category", categories=("0", "1")).public.is_boolean
    assert not Column(**WORK).public.is_boolean
    assert not Column(**AGE).public.is_boolean


def test_the_categories_and_their_order_are_part_of_the_digest() -> None:
    plain = schema(WORK)
    turned = schema({**WORK, "categories": ["state", "private", "none"]})
    assert plain.digest() != turned.digest()
    assert "categories" not in str(schema(AGE).agreed())


def test_a_schema_with_categories_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(schema(AGE, {**WORK, "missing": "none"}).to_toml())
    assert Schema.load(path) == schema(AGE, {**WORK, "missing": "none"})
    assert "min = 0.0\nmax = 2.0" not in path.read_text()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"categories": ["one"]}, "at least 2 different texts"),
        ({"categories": ["a", "a"]}, "at least 2 different texts"),
        ({"categories": ["a", " b"]}, "begin or end with blanks"),
        ({"categories": []}, "at least 2 different texts"),
        ({"max": 5}, "remove min and max"),
        ({"missing": "unknown"}, "'drop', 'keep' or one of the categories, got 'unknown'"),
        ({"missing": 1.0}, "'drop', 'keep' or one of the categories"),
        ({"type": "number", "min": 0, "max": 1}, "categories are required for type"),
    ],
)
def test_a_mistake_in_categories_is_told(change: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        Column(**{**WORK, **change})


def test_missing_bounds_say_that_bounds_are_public_and_how_to_give_them() -> None:
    with pytest.raises(PlanError, match=r"codebook.*because a bound read from the records"):
        Column(name="age", type="number")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"unit": "patient"}, "max_rows is required"),
        ({"max_rows": 2}, "remove it"),
        ({"unit": "patient", "max_rows": 0}, "max_rows must be greater than or equal to 1"),
        ({"unit": "patient", "max_rows": True}, "max_rows must be a valid integer"),
        ({"unit": "patient", "max_rows": 1.5}, "max_rows must be a valid integer"),
        ({"unit": "age", "max_rows": 1}, "is one of the columns, so its type"),
        ({"unit": ""}, "unit must have at least 1 character"),
        ({"max_silos_per_person": 0}, "max_silos_per_person must be"),
        ({"columns": []}, "columns must have at least 1 item"),
        ({"columns": [AGE, AGE]}, "different names, got 'age' more than once"),
        ({"columns": [7]}, "columns must be"),
        ({"dataset": ""}, "dataset must have at least 1 character"),
        ({"seed": 1}, "'seed' is not a key"),
    ],
)
def test_a_mistake_in_a_schema_is_one_sentence(values: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says) as caught:
        schema(**values)
    assert "\n" not in str(caught.value)


def test_every_key_without_a_default_is_asked_for() -> None:
    for key in ("dataset", "unit", "columns"):
        values = {"dataset": "ward", "unit": "row", "columns": [AGE]}
        del values[key]
        with pytest.raises(PlanError, match=f"'{key}' is missing"):
            Schema(**values)


def test_a_schema_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        schema().unit = "patient"  # type: ignore[misc]


def test_group_size_multiplies_rows_and_silos() -> None:
    assert schema().group_size == 1
    assert schema(max_silos_per_person=3).group_size == 3
    assert schema(unit="patient", max_rows=4).group_size == 4
    assert schema(unit="patient", max_rows=4, max_silos_per_person=3).group_size == 12


def test_a_step_is_public_for_numbers_and_integers_have_the_step_1(tmp_path: Path) -> None:
    visits = {"name": "visits", "type": "number", "min": 0, "max": 60, "step": 3}
    made = schema(AGE, SMOKER, visits, {**visits, "name": "time", "step": None})
    assert [column.public.step for column in made.columns] == [1.0, 0.0, 3.0, 0.0]
    assert schema(visits).digest() != schema({**visits, "step": 6}).digest()
    (tmp_path / "s.toml").write_text(made.to_toml(), encoding="utf-8")
    again = Schema.load(tmp_path / "s.toml")
    assert again == made
    assert made.to_toml().count("step") == 1
    assert (again.columns[2].step, again.columns[3].step) == (3.0, None)


@pytest.mark.parametrize(
    "column",
    [
        {**AGE, "step": 1},
        {**SMOKER, "step": 1},
        *({**AGE, "type": "number", "step": step} for step in (0, -1, math.inf, math.nan)),
    ],
)
def test_a_step_is_a_positive_number_of_a_column_of_numbers(column: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="step"):
        schema(column)


def test_unit_is_described_with_every_number_that_counts() -> None:
    assert schema().describe_unit() == "one row, at one silo only"
    words = schema(unit="patient", max_rows=4, max_silos_per_person=3).describe_unit()
    assert "'patient'" in words
    assert "at most 4 a silo" in words
    assert "up to 3 silos" in words


def test_some_columns_keep_their_order_and_all_that_is_said_of_them() -> None:
    whole = schema(AGE, SMOKER, {"name": "weight", "type": "number", "min": 0, "max": 300})
    some = whole.select(["weight", "age"])
    assert some.columns == (whole.columns[0], whole.columns[2])
    assert some.dataset == whole.dataset
    assert some.digest() != whole.digest()
    assert whole.select(whole.names) == whole
    person = schema(unit="patient", max_rows=3, max_silos_per_person=2)
    assert person.select({"age"}).group_size == 6


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("age", "height"), "the schema has no column 'height'; select some of its columns."),
        ((), f"{NAMES}, got (); use header() to read those of a file."),
        ("age", f"{NAMES}, got 'age'; use header() to read those of a file."),
    ],
)
def test_a_choice_of_columns_that_cannot_be_is_told(names: Any, says: str) -> None:
    with pytest.raises(PlanError) as refused:
        schema().select(names)
    assert str(refused.value) == says


def test_the_column_that_names_clients_is_part_of_every_choice() -> None:
    clients = schema({**AGE, "out_of_range": "drop"}, SMOKER, unit="age")
    with pytest.raises(PlanError, match="must include the unit of privacy, 'age'"):
        clients.select(["smoker"])
    assert clients.select(["age"]).unit == "age"


def test_grid_has_the_bounds_in_column_order() -> None:
    grid = schema({**AGE, "min": -4}, SMOKER).grid(12)
    assert (grid.low, grid.high, grid.frac_bits) == ((-4.0, 0.0), (120.0, 1.0), 12)


@pytest.mark.parametrize(
    ("missing", "fill"), [("min", 0.0), ("max", 120.0), ("midpoint", 60.0), (7, 7.0)]
)
def test_fill_value_is_the_named_bound_or_the_number(missing: str | int, fill: float) -> None:
    assert Column(**{**AGE, "missing": missing}).fill_value == fill


def test_fill_value_of_drop_is_nan() -> None:
    assert math.isnan(Column(**AGE).fill_value)


_names = st.text(min_size=1, max_size=8).filter(lambda t: t == t.strip() and not t.isspace())
_encodable = _names.filter(lambda t: t.isascii() or t.encode("utf-8", "ignore").decode() == t)
_bounds = st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))


@st.composite
def _columns(draw: st.DrawFn, name: str) -> dict[str, Any]:
    low, width = draw(_bounds)
    fill = draw(st.sampled_from(["drop", "min", "max", "midpoint", low]))
    return {
        "name": name,
        "type": draw(st.sampled_from(["number", "integer"])),
        "min": low,
        "max": low + width,
        "measure": draw(
            st.text(max_size=5).filter(lambda t: t == t.encode(errors="ignore").decode())
        ),
        "missing": fill,
        "out_of_range": draw(st.sampled_from(["clip", "drop"])),
    }


@given(names=st.lists(_encodable, min_size=1, max_size=4, unique=True), data=st.data())
def test_toml_text_reads_back_to_an_equal_schema(names: list[str], data: st.DataObject) -> None:
    import tomllib

    unit = data.draw(_encodable.filter(lambda t: t not in names and t != "row"))
    made = schema(*(data.draw(_columns(name)) for name in names), unit=unit, max_rows=3)
    again = Schema(**tomllib.loads(made.to_toml()))
    assert again == made
    assert again.digest() == made.digest()


@given(low=st.dates(date(1900, 1, 1), date(2100, 1, 1)), years=st.floats(0.5, 90, allow_nan=False))
def test_bounds_of_a_date_are_written_as_days_and_read_back(low: date, years: float) -> None:
    import tomllib

    first = Column(name="born", type="date", min=low, max=date(2300, 1, 1))
    second = Column(name="seen", type="date", min=1900.0, max=1900.0 + years)
    made = Schema(dataset="ward", unit="row", columns=(first, second))
    written = tomllib.loads(made.to_toml())
    assert written["columns"][0]["min"] == low
    assert Schema(**written) == made


def test_toml_and_json_files_give_the_same_schema(tmp_path: Path) -> None:
    made = schema(unit="patient", max_rows=2)
    toml, as_json = tmp_path / "s.toml", tmp_path / "s.json"
    toml.write_text(made.to_toml(), encoding="utf-8")
    as_json.write_text(json.dumps(made.model_dump()), encoding="utf-8")
    assert Schema.load(toml) == Schema.load(as_json) == made


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("s.toml", "dataset = ", "not valid"),
        ("s.json", "[1]", "must be a table"),
        ("s.json", "{", "not valid"),
        ("s.toml", 'dataset = "d"', "'s.toml': 'unit' is missing"),
        ("s.toml", None, "cannot be read"),
    ],
)
def test_an_unusable_schema_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str | None, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_text(content)
    with pytest.raises(PlanError, match=says):
        Schema.load(name)


@pytest.mark.parametrize("heading", ["categories", "values", "levels"])
def test_a_codebook_lists_categories_under_a_usual_heading(tmp_path: Path, heading: str) -> None:
    codebook, path = tmp_path / "codebook.csv", tmp_path / "draft.toml"
    codebook.write_text(f"name,type,min,max,{heading}\nwork,category,,,a|b\nage,number,0,9,\n")
    path.write_text(init_schema(["work", "age"], codebook, dataset="ward"))
    assert Schema.load(path).columns[0].categories == ("a", "b")


def test_draft_without_codebook_is_refused_until_completed(tmp_path: Path) -> None:
    path = tmp_path / "draft.toml"
    path.write_text(init_schema(["age", "smoker"], dataset="ward"))
    assert path.read_text().count(FILL_IN) == 6
    with pytest.raises(PlanError, match="columns 'age', 'smoker': min must be a public number"):
        Schema.load(path)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_draft_with_full_csv_codebook_is_a_schema(tmp_path: Path, delimiter: str) -> None:
    codebook, path = tmp_path / "codebook.csv", tmp_path / "draft.toml"
    lines = [
        "name,type,min,max,measure,missing,note",
        "unused,number,0,1,,,",
        "smoker,yes-no,,,,,asked",
        "age,integer,0,120,years,midpoint,",
    ]
    codebook.write_text("\n".join(lines).replace(",", delimiter))
    path.write_text(init_schema(["age", "smoker"], codebook, dataset="ward"))
    assert Schema.load(path) == schema({**AGE, "missing": "midpoint"}, SMOKER)


@pytest.mark.parametrize(
    "codebook",
    [
        '[age]\ntype = "integer"\nmin = 0\nmax = 120\nmeasure = "years"\n'
        '[smoker]\ntype = "boolean"\n',
        '[[columns]]\nname = "age"\ntype = "integer"\nmin = 0\nmax = 120\nmeasure = "years"\n'
        '[[columns]]\nname = "smoker"\ntype = "boolean"\n',
    ],
)
def test_draft_with_full_toml_codebook_is_a_schema(tmp_path: Path, codebook: str) -> None:
    book, path = tmp_path / "codebook.toml", tmp_path / "draft.toml"
    book.write_text(codebook)
    path.write_text(init_schema(["age", "smoker"], book, dataset="ward"))
    assert Schema.load(path) == schema()


def test_draft_keeps_what_a_partial_codebook_says(tmp_path: Path) -> None:
    book = tmp_path / "codebook.csv"
    book.write_text("name,type,min,max,measure\nage,integer,,120,years\n")
    draft = init_schema(["age"], book, dataset="ward")
    assert 'type = "integer"' in draft
    assert "max = 120.0" in draft
    assert draft.count(FILL_IN) == 1
    path = tmp_path / "draft.toml"
    path.write_text(draft)
    with pytest.raises(PlanError, match="column 'age': min must be a public number"):
        Schema.load(path)


def test_codebook_that_takes_bounds_from_data_is_refused(tmp_path: Path) -> None:
    book = tmp_path / "codebook.csv"
    book.write_text("name,type,min,max\nage,integer,from data,from data\n")
    with pytest.raises(PlanError, match="column 'age': min must be a public number"):
        init_schema(["age"], book)


def test_draft_without_the_owners_name_is_refused(tmp_path: Path) -> None:
    book, path = tmp_path / "codebook.csv", tmp_path / "draft.toml"
    book.write_text("name,type,min,max\nage,integer,0,120\n")
    path.write_text(init_schema(["age"], book))
    with pytest.raises(PlanError, match="dataset is still a placeholder"):
        Schema.load(path)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("age,smoker", "must be a list of one or more names"),
        (["age", "age"], "got 'age' more than once"),
    ],
)
def test_draft_refuses_what_is_no_list_of_names(columns: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        init_schema(columns)


def test_codebook_without_names_is_refused(tmp_path: Path) -> None:
    book = tmp_path / "codebook.csv"
    book.write_text("age,0,120\n")
    with pytest.raises(PlanError, match="needs a header"):
        init_schema(["age"], book)
    with pytest.raises(PlanError, match="cannot be read"):
        init_schema(["age"], tmp_path / "absent.csv")


# --- Categories in a codebook ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "book"),
    [
        (
            "b.csv",
            "name,type,min,max,categories,missing\nwork,category,,,private | state|none,none\n",
        ),
        (
            "b.csv",
            "name;type;min;max;categories;missing\nwork;category;;;private|state|none;none\n",
        ),
        (
            "b.csv",
            "name;type;min;max;categories;missing\nwork;Binary;;;private/state/none;none\n",
        ),
        (
            "b.toml",
            '[work]\ntype = "category"\nmissing = "none"\n'
            'categories = ["private", "state", "none"]\n',
        ),
    ],
)
def test_draft_takes_categories_from_a_codebook(tmp_path: Path, name: str, book: str) -> None:
    (tmp_path / name).write_text(book)
    (tmp_path / "draft.toml").write_text(init_schema(["work"], tmp_path / name, dataset="ward"))
    assert Schema.load(tmp_path / "draft.toml") == schema({**WORK, "missing": "none"})


def test_categories_that_look_like_numbers_stay_words(tmp_path: Path) -> None:
    book, path = tmp_path / "b.csv", tmp_path / "draft.toml"
    book.write_text("name,type,categories,missing\ngrade,category,1|2|3,1\n")
    path.write_text(init_schema(["grade"], book, dataset="ward"))
    (column,) = Schema.load(path).columns
    assert (column.categories, column.missing) == (("1", "2", "3"), "1")


def test_a_category_without_its_words_is_to_be_filled_in(tmp_path: Path) -> None:
    book, path = tmp_path / "b.csv", tmp_path / "draft.toml"
    book.write_text("name,type,min,max,categories\nwork,category,,,\n")
    path.write_text(init_schema(["work"], book, dataset="ward"))
    assert path.read_text().count(FILL_IN) == 1
    with pytest.raises(PlanError, match="categories must be at least 2 different texts"):
        Schema.load(path)


# --- Catalogues of items --------------------------------------------------------------------------


def test_a_catalogue_is_a_schema_of_boolean_items_and_survives_its_file(tmp_path: Path) -> None:
    names = tmp_path / "items.txt"
    names.write_text('\ufeffmilk\n\n bread, white \n"tea" # green\n', encoding="utf-8")
    found = catalogue_schema(names, dataset="shop")
    assert found == catalogue_schema(["milk", "bread, white", '"tea" # green'], dataset="shop")
    assert {column.type for column in found.columns} == {"boolean"}
    assert (found.unit, found.group_size) == ("row", 1)
    path = tmp_path / "catalogue.toml"
    path.write_text(found.to_toml())
    assert Schema.load(path) == found
    assert Schema.load(path).digest() == found.digest()


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([], "items must be 1 to 10000, got 0"),
        ([str(i) for i in range(10_001)], "items must be 1 to 10000, got 10001"),
        (["milk", "tea", " milk"], "got 'milk' more than once"),
        (["milk", " "], "must not be empty"),
        ("absent.txt", "catalogue 'absent.txt' cannot be read"),
    ],
)
def test_a_mistake_in_a_catalogue_is_told(items: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        catalogue_schema(items, dataset="shop")


# --- Two schemas ----------------------------------------------------------------------------------


def test_differences_name_columns_keys_and_values() -> None:
    one = schema(AGE, WORK)
    two = Schema(
        dataset="other",
        unit="patient",
        max_rows=2,
        columns=[{**AGE, "max": 110}, {**WORK, "categories": ["private", "none"]}, SMOKER],
    )
    assert differences(one, two) == [
        ("", "unit", "row", "patient"),
        ("", "max_rows", None, 2),
        ("age", "max", 120.0, 110.0),
        ("work", "max", 2.0, 1.0),
        ("work", "categories", ["private", "state", "none"], ["private", "none"]),
        ("smoker", "column", None, "yes"),
    ]
    turned = differences(schema(AGE, WORK), schema(WORK, AGE))
    assert turned == [("age", "place", 1, 2), ("work", "place", 2, 1)]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"dataset": "other"},
        {"max_silos_per_person": 2},
        {"columns": [SMOKER, AGE]},
        {"columns": [AGE]},
        {"columns": [AGE, {**SMOKER, "missing": "min"}]},
        {"columns": [AGE, {"name": "smoker", "type": "category", "categories": ["0", "1"]}]},
        {"columns": [{**AGE, "measure": "y"}, SMOKER]},
    ],
)
def test_there_is_a_difference_where_the_digests_differ_and_only_there(
    change: dict[str, Any],
) -> None:
    one = schema(AGE, SMOKER)
    two = Schema(**{"dataset": "ward", "unit": "row", "columns": [AGE, SMOKER], **change})
    assert (not differences(one, two)) == (one.digest() == two.digest())


def test_a_path_that_no_file_can_have_is_refused_in_words() -> None:
    with pytest.raises(PlanError, match="cannot be read"):
        Schema.load("a\0b")


def test_every_wrong_column_is_named_at_once(tmp_path: Path) -> None:
    """Those of one mistake together, so that a schema of forty columns is mended in one go."""
    columns = [
        {"name": "a", "type": "number"},
        {"name": "b", "type": "number", "min": 3, "max": 1},
        {"name": "c", "type": "categry", "min": 0, "max": 1},
        {"name": "d", "type": "integer"},
        {"name": "fine", "type": "number", "min": 0, "max": 1},
    ]
    path = tmp_path / "draft.toml"
    path.write_text(tomli_w.dumps({"dataset": "x", "unit": "row", "columns": columns}))
    with pytest.raises(PlanError) as refused:
        Schema.load(path)
    said = str(refused.value)
    assert "columns 'a', 'd': min must be a public number" in said
    assert "column 'b': min must be below max" in said
    assert "column 'c': type must be" in said
    assert "fine" not in said

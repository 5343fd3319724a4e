"""A log line is one JSON object with ids, and never an exception's message."""

from __future__ import annotations

import json
import logging

import pytest

from cloister.federation.service.logs import JsonLines, configure, place_of


@pytest.fixture
def restored() -> object:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before


def line(record: logging.LogRecord) -> dict[str, object]:
    text = JsonLines().format(record)
    assert "\n" not in text
    document: dict[str, object] = json.loads(text)
    return document


def test_a_line_holds_time_level_message_and_ids() -> None:
    record = logging.getLogger("x").makeRecord(
        "x", logging.WARNING, "f", 1, "round %d\nof %s", (2, "j"), None, extra={"job": "j"}
    )
    document = line(record)
    assert document.pop("at")
    assert document == {
        "level": "warning",
        "logger": "x",
        "message": "round 2\nof j",
        "job": "j",
    }


def test_an_exception_shows_its_class_and_place_only() -> None:
    with pytest.raises(ValueError, match="forty-two") as raised:
        raise ValueError("a record: forty-two")  # digits could be those of the time
    info = (raised.type, raised.value, raised.tb)
    record = logging.getLogger("x").makeRecord("x", logging.ERROR, "f", 1, "failed", (), info)
    assert place_of(raised.value).startswith("ValueError in test_an_exception_shows")
    text = JsonLines().format(record)
    assert "ValueError in test_an_exception_shows" in text
    assert "forty-two" not in text
    assert "a record" not in text


def test_everything_goes_to_standard_error_as_json(
    restored: object, capsys: pytest.CaptureFixture[str]
) -> None:
    configure("warning")
    logging.getLogger("uvicorn.error").warning("slow", extra={"silo": "a", "round": 3})
    logging.getLogger("other").info("not shown")
    out, err = capsys.readouterr()
    assert out == ""
    (only,) = err.splitlines()
    assert json.loads(only)["silo"] == "a"
    assert json.loads(only)["round"] == 3

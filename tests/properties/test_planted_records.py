"""Records and keys are planted, then every artefact and every message is searched for them.

Artefacts: frames, saved models, the ledger's file and export, what objects show of themselves, log
records, warnings, and the text of every error along the ways in which a run can be refused.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cloister import Budget, DPKMeans, Ledger, Schema
from cloister.app.in_process import InProcess, run_plan
from cloister.app.payment import Account
from cloister.app.report.page import write_report
from cloister.audit.emissions import OWNER_CHANNEL, observe
from cloister.core.errors import CloisterError, DataLossWarning
from cloister.data import array_records, read_source
from cloister.data.loss import watch_loss
from cloister.hazmat.ring import to_integers
from cloister.privacy.noise import DiscreteNoise
from cloister.protocol.client import Client
from cloister.protocol.journal import MemoryJournal
from cloister.protocol.messages import Close, Confirmation, Open, Reply, decode, encode
from cloister.protocol.plan import Plan
from cloister.secagg.masks import GroupMask
from cloister.tasks import TASKS
from cloister.testing import Faults, Wire, ZeroNoise, toy_plan, toy_schema
from cloister_lab.parties import MaskedClient, Params, Server, new_key

PLANTED = (0.7731943, -0.4187291)
WORD = "Zacharias-7731943"
KEY = bytes(range(101, 133))
PEOPLE = np.vstack([np.tile([PLANTED], (3, 1)), np.random.default_rng(0).uniform(-1, 1, (97, 2))])


def forms(values: tuple[float, ...]) -> set[bytes]:
    """How a record could be written: text in full or in part, and raw numbers."""
    steps = [round(v * 65536) for v in values]
    found = {repr(abs(v))[:8].encode() for v in values}
    for kind in ("<i4", ">i4", "<i8", ">i8"):
        found.add(np.array(steps).astype(kind).tobytes())
    for kind in ("<f4", ">f4", "<f8", ">f8"):
        found.add(np.array(values).astype(kind).tobytes())
        found.add((np.array(steps) / 65536).astype(kind).tobytes())
    return found


KEY_FORMS = {KEY, KEY.hex().encode(), repr(KEY).encode(), KEY[:12], KEY.hex()[:16].encode()}
SECRETS = forms(PLANTED) | {WORD.encode(), b"Zacharias"} | KEY_FORMS
# Grid steps have five digits, which digests and noised numbers hold by chance: whole numbers only.
STEPS = re.compile(
    rb"(?<![\w.])-?(%s)(?![\w]|\.[0-9]*[1-9])"
    % b"|".join(str(abs(round(v * 65536))).encode() for v in PLANTED)
)


def leaks(*artefacts: Any) -> set[bytes]:
    """Return the secrets that occur in any of the artefacts."""
    found = set()
    for artefact in artefacts:
        data = artefact if isinstance(artefact, bytes) else str(artefact).encode()
        found |= {secret for secret in SECRETS if secret in data} | set(STEPS.findall(data))
    return found


def test_the_search_finds_what_is_planted() -> None:
    assert leaks(f"row {PLANTED[0]} is out of range")
    assert leaks(json.dumps({"x": PLANTED[1]}))
    assert leaks(PEOPLE.tobytes())
    assert leaks(f"{KEY!r}")
    assert leaks(f"no number: {WORD}")
    for step in np.rint(np.array(PLANTED) * 65536):
        assert all(leaks(text) for text in (f"step {step:.0f}.", f"[{step}, 1]", f"{step:.0f},7"))
        chance = f"{abs(step):.0f}"
        assert not leaks(f"0.12{chance}", f"{chance}3", f"ab{chance}c", f"{chance}.25")
    assert not leaks("round 3 cannot be released", b"\0" * 100)


def grid_table(plan: Plan) -> np.ndarray:
    return plan.grid.encode(PEOPLE)


class PlantedMask(GroupMask):
    """The group key is known, so that it can be searched for."""


def planted_wire(plan: Plan, **options: Any) -> Wire:
    records = {silo: grid_table(plan) for silo in plan.silos}
    wire = Wire(plan, records, DiscreteNoise(), **options)
    for silo in plan.silos:
        wire.clients[silo] = Client(plan, silo, [records[silo]], PlantedMask(KEY))
    handlers = {silo: client.handle for silo, client in wire.clients.items()}
    wire.transport = Faults(InProcess(handlers))
    return wire


def test_no_frame_holds_a_record_or_a_key() -> None:
    plan = toy_plan()
    wire = planted_wire(plan)
    wire.run()
    assert isinstance(wire.transport, Faults)
    for _, _, up, down in wire.transport.frames:
        assert not leaks(up, down)
        assert not leaks(repr(decode(plan, up)), repr(decode(plan, down)))


def test_no_party_shows_a_record_or_a_key() -> None:
    wire = planted_wire(toy_plan())
    for _ in range(2):
        shown = [repr(x) for x in (wire.plan, wire.aggregator, *wire.clients.values())]
        shown += [repr(PlantedMask(KEY)), repr(DiscreteNoise()), str(wire.plan), f"{wire.plan}"]
        shown += [wire.plan.canonical_json(), wire.plan.describe()]
        assert not leaks(*shown)
        assert all(len(text) < 2000 for text in shown)
        if wire.aggregator._round < 0:
            wire.run()


def test_no_saved_model_ledger_or_log_holds_a_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "ledger.db"
    ledger = Ledger(path)
    ledger.open_dataset("ward", cap=Budget(5.0, 1e-6))
    schema = toy_schema(2)
    frame = pd.DataFrame(PEOPLE, columns=["x0", "x1"]).assign(name=WORD)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        silos = {f"s{i}": read_source(frame, schema) for i in range(3)}
        plan = toy_plan()
        plan = Plan.from_dict({**plan.to_dict(), "silos": list(silos)}, TASKS)
        result = run_plan(plan, silos, account=Account(ledger, "ward"))
        model = DPKMeans(2, epsilon=1.0, bounds=schema, ledger=ledger, dataset="ward")
        ledger.change_cap("ward", Budget(9.0, 1e-6))
        with pytest.raises(CloisterError) as refused:
            DPKMeans(2, epsilon=50.0, bounds=schema, ledger=ledger, dataset="ward").fit(frame)
        model.ledger = None
        model.fit(frame)
    result.save(tmp_path / "model.json")
    model.save(tmp_path / "kmeans.json")
    (tmp_path / "export.json").write_text(json.dumps(ledger.export()))
    for file in tmp_path.iterdir():
        assert not leaks(file.read_bytes()), file.name
    printed = capsys.readouterr()
    assert not leaks(
        repr(result),
        repr(model),
        *model._repr_mimebundle_().values(),
        repr(ledger),
        *(repr(records) for records in silos.values()),
        caplog.text,
        printed.out,
        printed.err,
        *(warning.message for warning in caught),
        refused.value,
    )


# --- The owner's channel --------------------------------------------------------------------------


def test_a_reading_warning_reaches_nobody_but_the_owner(tmp_path: Path) -> None:
    """Cells of records that are lost are planted; a reader may quote them in its own channel."""
    file, schema = tmp_path / "ward.csv", toy_schema(2)
    rows = [f"{WORD},{PLANTED[0]}"] * 150 + [f"{x},{y}" for x, y in PEOPLE.tolist()]
    file.write_text("\n".join(["x0,x1", *rows, ""]))
    plan = toy_plan()
    wires: list[Wire] = []

    def job() -> None:
        records = {silo: read_source(file, schema) for silo in plan.silos}
        watch_loss(records, {}, schema.names, max_loss=1.0)  # quotes the words that are lost
        wire = planted_wire(plan)
        wires.append(wire)
        wire.run()
        result = run_plan(plan, records)
        result.save(tmp_path / "model.json")
        write_report(result, tmp_path / "report.html")

    _, emitted = observe(job)
    assert leaks(*emitted.owner), "the owner hears of it"
    assert not leaks(*(line for line in emitted.lines if not line.startswith("effect writes")))
    assert not any(line.startswith("raises") for line in emitted.lines), emitted.lines
    assert isinstance(wires[0].transport, Faults)
    for _, _, up, down in wires[0].transport.frames:
        assert not leaks(up, down)
    for artefact in tmp_path.iterdir():
        assert artefact == file or not leaks(artefact.read_bytes()), artefact.name


def test_no_other_warning_is_the_owners() -> None:
    """A class of which others are made would let any of them into the channel."""
    assert (DataLossWarning,) == OWNER_CHANNEL
    assert DataLossWarning.__subclasses__() == []


# --- Errors ---------------------------------------------------------------------------------------


def in_array(X: Any) -> Callable[[Path], Any]:
    return lambda folder: array_records(X, toy_schema(2).grid())


def fit(X: Any, **options: Any) -> Callable[[Path], Any]:
    settings = {"epsilon": 1.0, "bounds": (-1, 1), "nominal_n": 100, **options}
    return lambda folder: DPKMeans(2, **settings).fit(X)


def file(name: str, text: str, **options: Any) -> Callable[[Path], Any]:
    def call(folder: Path) -> Any:
        (folder / name).write_text(text)
        return fit(folder / name, **options)(folder)

    return call


def wrong_pad(folder: Path) -> None:
    plan = toy_plan(silos=2)
    clients = [Client(plan, s, [grid_table(plan)], PlantedMask(KEY)) for s in plan.silos]
    words = [decode(plan, c.handle(encode(plan, Open(0)))).elements for c in clients]  # type: ignore[union-attr]
    reply = Reply(0, plan.silos, words[0] + words[1] + np.uint64(1 << 60))
    answers = [decode(plan, c.handle(encode(plan, reply))) for c in clients]
    told = tuple(Confirmation(a.sender, a.result_hash, a.mac) for a in answers)  # type: ignore[union-attr]
    clients[0].handle(encode(plan, Open(1, told)))


def lost_upload(folder: Path) -> None:
    class Forgets(MemoryJournal):
        def frame(self, job: str, round: int) -> None:
            return None

    plan = toy_plan()
    client = Client(plan, "silo-0", [grid_table(plan)], PlantedMask(KEY), Forgets())
    for _ in range(2):
        client.handle(encode(plan, Open(0)))


def early_close(folder: Path) -> None:
    plan = toy_plan()
    Client(plan, "silo-0", [grid_table(plan)], PlantedMask(KEY)).handle(encode(plan, Close(1)))


def shim(**changes: Any) -> Callable[[Path], Any]:
    def call(folder: Path) -> Any:
        values = {"k": 2, "dim": 2, "num_clients": 1, "iters": 1, "dp": "none", **changes}
        p = Params(**values)
        client = MaskedClient(0, PEOPLE, p, key=new_key())
        totals, counts, _ = client.step()
        server = Server(p, noise=ZeroNoise())
        answer = server.step([totals], [counts])
        client.update(*answer)
        client.step()

    return call


def holey() -> np.ndarray:
    X = PEOPLE.copy()
    X[1, 1] = np.nan
    return X


TEXT = PEOPLE.astype(object)
TEXT = np.vstack([TEXT, [[WORD, 0.5]]])
ROWS = "\n".join(",".join(map(repr, row)) for row in PEOPLE.tolist())
ONE_COLUMN = Schema(
    dataset="d", unit="row", columns=[{"name": "y", "type": "number", "min": -1, "max": 1}]
)
REFUSED: dict[str, Callable[[Path], Any]] = {
    "another number of columns": in_array(PEOPLE[:, :1]),
    "one dimension": in_array(PEOPLE.ravel()),
    "complex numbers": in_array(PEOPLE + 1j),
    "a missing value on the grid": lambda folder: toy_schema(2).grid().encode(holey()),
    "one silo of another shape": fit([PEOPLE, PEOPLE[:, :1]]),
    "a silo that is no table": fit([PEOPLE, list(PLANTED)]),
    "a table of one dimension": fit(PEOPLE.ravel()),
    "a prediction of text": lambda folder: fit(PEOPLE)(folder).predict(TEXT),
    "a prediction of one record": lambda folder: fit(PEOPLE)(folder).predict(PEOPLE[0]),
    "a schema of another column": fit(pd.DataFrame(PEOPLE, columns=["a", "b"]), bounds=ONE_COLUMN),
    "a file without the column": file("t.csv", f"a,b\n{ROWS}\n", bounds=ONE_COLUMN),
    "a file of another kind": file("t.parquet", f"a,b\n{ROWS}\n"),
    "a file without columns": file("t.csv", ""),
    "too many clusters": fit(PEOPLE, nominal_n=1),
    "bounds that are none": fit(PEOPLE, bounds="from data"),
    "a wrong pad": wrong_pad,
    "a lost upload": lost_upload,
    "an early close": early_close,
    "a round beyond iters": shim(),
    "an epsilon that is none": shim(dp="gaussian", epsilon=-1.0),
}


LOST: dict[str, Callable[[Path], Any]] = {
    "ragged rows": in_array([[*PLANTED], [PLANTED[0]]]),
    "a table with text": fit(TEXT),
    "a frame with text": fit(pd.DataFrame(TEXT)),
    "a file that never ends a quote": file("t.csv", 'a,b\n"' + f"{WORD},{ROWS}\n" * 400),
}


@pytest.mark.parametrize("how", LOST)
def test_a_record_that_cannot_be_read_stops_nothing(how: str, tmp_path: Path) -> None:
    _, emitted = observe(lambda: LOST[how](tmp_path))
    assert not any(line.startswith("raises") for line in emitted.lines)
    effects = [line for line in emitted.lines if not line.startswith("effect writes")]
    assert not leaks(*effects), "only the owner hears of it"


@pytest.mark.parametrize("how", REFUSED)
def test_no_error_holds_a_record_or_a_key(how: str, tmp_path: Path) -> None:
    with pytest.raises(CloisterError) as caught:
        REFUSED[how](tmp_path)
    error: BaseException | None = caught.value
    while error is not None:  # the causes are printed too
        assert not leaks(str(error), repr(error), *error.args), type(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    text = "".join(traceback.format_exception_only(caught.value))
    assert len(text) < 500
    assert text.strip().endswith((".", ".'", '."')), text


def records_of(model: DPKMeans) -> Iterator[Any]:
    yield from (value for name, value in vars(model).items() if name != "labels_")


def test_a_fitted_model_holds_no_record(reachable: Callable[[object], list[object]]) -> None:
    model = DPKMeans(2, epsilon=1.0, bounds=(-1, 1), nominal_n=100).fit(PEOPLE)
    steps = toy_schema(2).grid().encode(PEOPLE)
    for part in records_of(model):
        for thing in reachable(part):
            if isinstance(thing, np.ndarray) and thing.size >= 2:
                assert not leaks(thing.tobytes())
                assert thing.shape != steps.shape
    assert model.labels_.shape == (100,)


def test_words_of_an_upload_tell_nothing_of_the_sum() -> None:
    plan = toy_plan()
    wire = planted_wire(plan)
    frame = wire.clients["silo-0"].handle(encode(plan, Open(0)))
    words = to_integers(decode(plan, frame).elements)  # type: ignore[union-attr]
    plain = plan.task.contribute(0, wire.clients["silo-0"].state, grid_table(plan))
    assert not set(words.tolist()) & set(plain.tolist())

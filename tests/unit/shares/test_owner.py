"""What an owner shares in a computation: by default nothing, and each rule refuses by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cloister.federation.settings import DataSettings, PolicySettings, SiloSettings
from cloister.federation.silo.policy import Policy
from cloister.federation.silo.site import Site
from cloister.hazmat.signing import Identity
from cloister.privacy.events import Event, GaussianEvent
from cloister.shares import owner
from cloister.shares.mpc.program import Opening
from cloister.shares.mpc.session import Party, Session
from cloister.testing import toy_schema


@dataclass(frozen=True)
class Any_:
    name: ClassVar[str] = "any"

    opening: Opening = "label"
    sigma: float = 0.0
    max_rows: int = 1
    max_silos: int = 1

    def event(self) -> Event | None:
        return GaussianEvent(self.sigma) if self.sigma else None

    def tables(self) -> Mapping[str, tuple[int, ...]]:
        return {"x": (1,), "y": (1,), "z": (1,)}


PINS = {name: "ed25519:" + 64 * digit for name, digit in zip("abcd", "1234", strict=True)}
SCHEMA = toy_schema()


def session(program: Any) -> Session:
    return Session(
        id=32 * "0",
        program=program,
        dealer="a",
        servers=("b", "c"),
        owners={"x": "d", "y": "b", "z": "c"},
        receivers=("d",),
        parties={name: Party(fingerprint=pin, address="127.0.0.1:1") for name, pin in PINS.items()},
    )


def refusal(program: Any, peers: Mapping[str, str] = PINS, **rules: Any) -> str | None:
    policy = Policy(PolicySettings(**{"secure_programs": ("any",)} | rules))
    return owner.refusal(
        session(program), policy, silo="d", fingerprint=PINS["d"], peers=peers, schema=SCHEMA
    )


PRIVATE = Any_("private", sigma=20.0)


def test_a_session_within_every_rule_is_not_refused() -> None:
    assert refusal(Any_()) is None
    assert refusal(Any_("exact"), allow_exact_opening=True) is None
    assert refusal(PRIVATE, max_epsilon_per_job=1.0) is None


def test_by_default_nothing_is_shared() -> None:
    assert "secure_programs" in str(refusal(Any_(), secure_programs=()))
    assert PolicySettings().secure_programs == ()
    assert PolicySettings().allow_exact_opening is False


def test_an_exact_opening_needs_as_many_other_owners_as_a_sum() -> None:
    allowed = {"allow_exact_opening": True, "min_other_silos": 3}
    assert "at least 3 other owners, got 2" in str(refusal(Any_("exact"), **allowed))
    assert refusal(Any_(), min_other_silos=3) is None


def test_an_exact_opening_needs_a_word_of_its_own() -> None:
    assert "not a private release" in str(refusal(Any_("exact")))


@pytest.mark.parametrize("name", "abc")
def test_every_other_party_must_be_pinned_as_it_is(name: str) -> None:
    without = {who: pin for who, pin in PINS.items() if who != name}
    assert f"party {name!r} is not pinned here" in str(refusal(Any_(), without))
    other = {**PINS, name: "ed25519:" + 64 * "9"}
    assert f"party {name!r} has the fingerprint" in str(refusal(Any_(), other))
    renamed = {**without, "z": PINS[name]}
    assert "pinned here under the name 'z'" in str(refusal(Any_(), renamed))


@pytest.mark.parametrize(
    ("program", "rules", "says"),
    [
        (PRIVATE, {}, "max_epsilon_per_job"),
        (PRIVATE, {"max_epsilon_per_job": 0.05}, "epsilon must be at most 0.05"),
        (replace(PRIVATE, max_rows=2), {"max_epsilon_per_job": 1.0}, "max_rows of the program"),
        (replace(PRIVATE, max_silos=2), {"max_epsilon_per_job": 1.0}, "max_silos of the program"),
        (replace(PRIVATE, sigma=0.0), {"max_epsilon_per_job": 1.0}, "must have the cost"),
        (PRIVATE, {"max_epsilon_per_job": 1.0, "studies": ("other",)}, "not among those allowed"),
    ],
)
def test_a_private_opening_is_within_the_owners_caps(
    program: Any, rules: Mapping[str, Any], says: str
) -> None:
    assert says in str(refusal(program, **rules))


def test_a_private_opening_is_for_rows_alone() -> None:
    """Nothing keeps a table on shares to a few rows of one person."""
    of_people = SCHEMA.model_copy(update={"unit": "person", "max_rows": 1})
    policy = Policy(PolicySettings(secure_programs=("any",), max_epsilon_per_job=1.0))
    own = {"silo": "d", "fingerprint": PINS["d"], "peers": PINS}
    assert owner.refusal(session(PRIVATE), policy, **own, schema=SCHEMA) is None
    assert "unit here is 'person'" in str(
        owner.refusal(session(PRIVATE), policy, **own, schema=of_people)
    )


def test_a_receiver_who_gives_nothing_needs_a_word_of_its_own() -> None:
    owners = {"x": "d", "y": "c", "z": "c"}
    of = replace(session(Any_()), owners=owners, receivers=("d", "b"))
    for allowed in (False, True):
        rules = PolicySettings(secure_programs=("any",), allow_publish=allowed)
        reason = owner.refusal(of, Policy(rules), silo="d", fingerprint=PINS["d"], peers=PINS)
        assert (reason is None) == allowed
        assert allowed or "receiver 'b' gives no table" in str(reason)


def test_a_session_for_another_silo_is_refused() -> None:
    policy = Policy(PolicySettings(secure_programs=("any",)))
    for silo, pin, says in (
        ("e", PINS["d"], "is not a party"),
        ("d", PINS["a"], "but this silo's fingerprint is"),
    ):
        reason = owner.refusal(
            session(Any_()), policy, silo=silo, fingerprint=pin, peers=PINS, schema=None
        )
        assert says in str(reason)


def test_a_private_opening_is_charged_to_the_silos_own_ledger_with_its_caps(tmp_path: Path) -> None:
    settings = SiloSettings(
        name="d",
        coordinator="https://localhost:8443",
        data=DataSettings(file=tmp_path / "d.csv"),
        ledger=tmp_path / "ledger.db",
        cap_epsilon=4.0,
        policy=PolicySettings(max_epsilon_per_study=1.0, max_epsilon_per_year=2.0),
    )
    site = Site(settings, SCHEMA, Policy(settings.policy), Identity.new())
    account = owner.account_of(site)
    assert account.dataset == SCHEMA.dataset
    assert account.ledger.cap(SCHEMA.dataset, "default").epsilon == 1.0
    assert account.year_epsilon == 2.0

"""Kill parties of a real federation many times, and write down what came of it.

    python tests/chaos/run.py --kills 200 --seed 1 --out docs/results/chaos.md
    python tests/chaos/run.py --every-step

Two suites. *Recovery*: every party that is struck returns, and the job must end with the very
result of an undisturbed run. *Loss*: silos stay away, and what is released is the result of the
survivors, or nothing is. Both check every ledger and audit file. With ``--every-step``, recovery
from every signal at every side of every leg of a pairwise job.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):  # run as a program
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    __package__ = "tests.chaos"

from .kit import (
    CABLES,
    PROFILES,
    ROUNDS,
    SIDES,
    Beaten,
    Blow,
    Moment,
    Outcome,
    random_loss,
    random_recovery,
    steps,
    words,
)

LOSS_SHARE = 3  # of so many kills, one is a loss
LEGS = [(leg, t) for leg, t in steps("pairwise") if t == 1 or leg in ("keys", "secrets", "ready")]
LEGS.append(("close", ROUNDS - 1))
# Seconds until a silo counts as lost: absent, silent, or without a decision.
LOSS = {"grace": 1.5, "round_timeout": 6.0, "approval_timeout": 10.0}


@dataclass(frozen=True)
class Trial:
    """One job that was struck."""

    suite: str
    profile: str
    blows: tuple[Blow, ...]
    outcome: Outcome | None
    error: str = ""


def campaign(folder: Path, kills: int, seed: int, *, say: bool = False) -> Iterator[Trial]:
    """Strike until `kills` blows were dealt; yield each trial."""
    rng, dealt = random.Random(seed), 0
    outcomes: dict[str, list[Outcome]] = {"recovery": [], "loss": []}
    with (
        Beaten(folder / "recovery") as sturdy,
        Beaten(folder / "loss", **LOSS) as frail,
    ):
        while dealt < kills:
            profile = rng.choice(PROFILES)
            if rng.randrange(LOSS_SHARE):
                suite, blows = "recovery", [random_recovery(rng, profile)]
            else:
                suite, blows = "loss", random_loss(rng, profile)
            if say:
                sys.stderr.write(f"{dealt:4d} {suite} {profile}: {'; '.join(map(str, blows))}\n")
            try:
                beat = sturdy.recover if suite == "recovery" else frail.lose
                outcome = beat(profile, blows)
            except Exception as error:
                yield Trial(suite, profile, tuple(blows), None, words(error))
                return  # the federation may be in any state now
            dealt += len(outcome.blows)
            outcomes[suite].append(outcome)
            yield Trial(suite, profile, outcome.blows, outcome)
        for suite, federation in (("recovery", sturdy), ("loss", frail)):
            try:
                federation.check_store(outcomes[suite])
            except Exception as error:
                yield Trial(suite, "both", (), None, words(error))


def every_step(folder: Path) -> Iterator[Trial]:
    """Strike at every leg, from every side, in every way; yield each trial."""
    outcomes = []
    with Beaten(folder) as federation:
        for leg, t in LEGS:
            for party, when in SIDES:
                for how in ("kill", "term", *CABLES):
                    blows = (Blow(party, how, Moment(party, when, leg, t), 0.1),)
                    sys.stderr.write(f"{blows[0]}\n")
                    try:
                        outcomes.append(federation.recover("pairwise", blows))
                    except Exception as error:
                        yield Trial("recovery", "pairwise", blows, None, words(error))
                        return
                    yield Trial("recovery", "pairwise", blows, outcomes[-1])
        federation.check_store(outcomes)


def summary(trials: list[Trial], seed: int, seconds: float) -> str:
    """Return the page that says what was done and what came of it."""
    blows = [(trial, blow) for trial in trials for blow in trial.blows]
    good = [trial for trial in trials if trial.outcome]
    recovered = [t.outcome for t in good if t.outcome and t.suite == "recovery"]
    lost = [t.outcome for t in good if t.outcome and t.suite == "loss"]
    lines = [
        "# Two hundred kills" if len(blows) >= 200 else f"# {len(blows)} kills",
        "",
        "Made by `python tests/chaos/run.py`; what is done is said in that file and in `kit.py` "
        "beside it.",
        "",
        f"- Seed {seed}, commit {_commit()}, {os.cpu_count()}-core {platform.machine()} "
        f"{platform.system()}, Python {platform.python_version()}, {seconds / 60:.0f} minutes.",
        f"- {len(blows)} blows in {len(trials)} jobs; {len(good)} jobs as they must be, "
        f"{len(trials) - len(good)} not.",
        f"- Every recovery gave the result of the undisturbed run bit for bit; the slowest took "
        f"{max((o.seconds for o in recovered), default=0):.1f} s from the blow to the end."
        if recovered
        else "- No recovery.",
        f"- {sum(o.state == 'done' for o in lost)} of {len(lost)} jobs that lost silos for good "
        "gave the pooled result of the survivors; the others gave none and said why.",
        "- Every ledger and audit file verified after every job; each silo charged once a round, "
        "and the coordinator's database has each round once.",
        "",
    ]
    for title, key in (
        ("suite and profile", lambda t, b: f"{t.suite}, {t.profile}"),
        ("how", lambda t, b: b.how),
        ("who", lambda t, b: "coordinator" if b.victim == "coordinator" else "a silo"),
        ("outcome", lambda t, b: t.outcome.state if t.outcome else f"BROKEN: {t.error}"),
    ):
        counts = Counter(key(t, b) for t, b in blows)
        lines += [f"| {title} | blows |", "|---|---|"]
        lines += [f"| {name} | {count} |" for name, count in sorted(counts.items())]
        lines.append("")
    counts = Counter(phase for trial in good if trial.outcome for phase in trial.outcome.phases)
    lines += ["| what the coordinator was doing | blows |", "|---|---|"]
    lines += [f"| {name} | {count} |" for name, count in sorted(counts.items())]
    lines.append("")
    return "\n".join(lines)


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def main() -> int:
    """Run the campaign; return 1 if anything was not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--every-step", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    begun, trials = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        struck = campaign(Path(folder), args.kills, args.seed, say=True)
        for trial in every_step(Path(folder)) if args.every_step else struck:
            trials.append(trial)
            if trial.error:
                sys.stderr.write(f"     BROKEN: {trial.error}\n")
    page = summary(trials, args.seed, time.monotonic() - begun)
    sys.stdout.write(page)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(page, encoding="utf-8")
    return int(any(trial.error for trial in trials))


if __name__ == "__main__":
    sys.exit(main())

"""Kill parties of a real federation many times, and write down what came of it.

    python tests/chaos/run.py --kills 200 --seed 1 --out docs/results/chaos.md

Two suites. *Recovery*: every party that is struck returns, and the job must end with the very
result of an undisturbed run. *Loss*: silos stay away, and what is released is the result of the
survivors, or nothing is. Both check every ledger and audit file.
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

from .kit import PROFILES, Beaten, Blow, Outcome, random_loss, random_recovery, words

LOSS_SHARE = 3  # of so many kills, one is a loss
# Seconds until a silo counts as lost: absent, silent, or without a decision.
LOSS = {"grace": 1.5, "round_timeout": 4.0, "approval_timeout": 5.0}


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
    with (
        Beaten(folder / "recovery") as sturdy,
        Beaten(folder / "loss", **LOSS) as frail,
    ):
        while dealt < kills:
            profile = PROFILES[dealt % 2]
            if rng.randrange(LOSS_SHARE):
                suite, blows = "recovery", [random_recovery(rng, profile)]
            else:
                suite, blows = "loss", random_loss(rng, profile)
            dealt += len(blows)
            if say:
                sys.stderr.write(f"{dealt:4d} {suite} {profile}: {'; '.join(map(str, blows))}\n")
            try:
                beat = sturdy.recover if suite == "recovery" else frail.lose
                yield Trial(suite, profile, tuple(blows), beat(profile, blows))
            except Exception as error:
                yield Trial(suite, profile, tuple(blows), None, words(error))
                return  # the federation may be in any state now


def summary(trials: list[Trial], seed: int, seconds: float) -> str:
    """Return the page that says what was done and what came of it."""
    blows = [(trial, blow) for trial in trials for blow in trial.blows]
    good = [trial for trial in trials if trial.outcome]
    recovered = [t.outcome for t in good if t.outcome and t.suite == "recovery"]
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
        "- Every ledger and audit file verified after every job; each silo charged once a round.",
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
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    begun, trials = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        for trial in campaign(Path(folder), args.kills, args.seed, say=True):
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

"""Examples of each command, for the end of its help and for the tests."""

from __future__ import annotations

_FILES = "north.csv east.csv south.csv --schema patients.toml --max-loss 0.1"
_COST = "--epsilon 1 --nominal-n 15000 --cap-epsilon 3"

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("demo", "demo --out shown"),
    "ask": (
        "ask north.csv east.csv --question describe --codebook codebook.csv",
        "ask north.csv east.csv --question logistic --set target=diabetes --bounds diabetes=yes-no "
        "--bounds age=20..85 --bounds bmi=10..80 --epsilon 1 --cap-epsilon 3 --max-loss 0.1 --yes",
    ),
    "cluster": (
        f"cluster {_FILES} --columns age,bmi,systolic --k 3 {_COST} --out groups",
        f"cluster {_FILES} --k auto:2..8 {_COST} --out groups",
    ),
    "classify": (f"classify {_FILES} --target diabetes {_COST} --out model",),
    "regress": (f"regress {_FILES} --target systolic {_COST} --out model",),
    "rules": (
        "rules shop.txt --catalogue items.txt --min-support 0.02 --epsilon 1 --nominal-n 9000 "
        "--cap-epsilon 3 --out rules",
    ),
    "evaluate": (
        f"evaluate test.csv --schema patients.toml --model model/model.json {_COST} --out measures",
    ),
    "outliers": (f"outliers {_FILES} {_COST} --out usual",),
    "run": (f"run {_FILES} --task my_task.py:MyTask {_COST} --out result",),
    "horizon": (
        "horizon open year --silos north,south --periods 52 --schema patients.toml --task tabulate "
        "--set 'tables=[[\"sex\"]]' --epsilon 1 --nominal-n 15000 --cap-epsilon 3",
        "horizon release year 1 week1/north.csv week1/south.csv",
        "horizon freeze 3f2a 1 week1.csv --config silo.toml",
        "horizon show year",
    ),
    "tasks": ("tasks", "tasks tabulate", "tasks --json"),
    "plan": (
        "plan --schema patients.toml --columns age,bmi,systolic --k 3 --epsilon 1 "
        "--nominal-n 15000 --silos 3",
    ),
    "predict": (
        "predict groups/model.json north.csv --schema patients.toml --keep patient "
        "--out north-groups.csv",
    ),
    "compute": ("compute session.toml --as north --keys keys --data patients=north.csv",),
    "link": (
        "link plan session.toml --expected 30000",
        "link check session.toml --as bank --settings silo.toml --data crm=crm.csv",
        "link run session.toml --as bank --keys keys --settings silo.toml --data crm=crm.csv",
    ),
    "check": ("check north.csv --schema patients.toml",),
    "schema": (
        "schema init north.csv --codebook codebook.csv --out patients.toml",
        "schema validate patients.toml",
        "schema diff patients.toml theirs.toml",
    ),
    "budget": (
        "budget advise --epsilon 0.5 --jobs 12 --analysts 3",
        "budget show",
        "budget backup ledger.db --out ledger-copy.db",
        "budget verify ledger.db",
    ),
    "export": (
        "export model.json --out numbers",
        "export model.json --to onnx --out model.onnx",
    ),
    "verify": (
        "verify model.json",
        "verify model.json --signed north.signed east.signed --pins silo.toml",
        "verify audit.jsonl",
    ),
    "compare": ("compare --epsilons 0.5,1 --datasets iris,wine --out compared",),
    "experiments": ("experiments list", "experiments run gap --full --data data"),
    "audit": ("audit fastlloyd --epsilon 1", "audit --all --out audits"),
    "config": ("config init --role silo --out silo.toml", "config check silo.toml"),
    "doctor": ("doctor --config silo.toml",),
    "coordinator": ("coordinator run --config coordinator.toml",),
    "silo": ("silo run --config silo.toml",),
    "scorer": ("scorer run --config scorer.toml",),
    "console": ("console", "console --folder ward", "console --config silo.toml"),
    "jobs": (
        "jobs list --config silo.toml",
        "jobs show 3f2a --config silo.toml",
        "jobs approve 3f2a --config silo.toml",
    ),
    "completion": ("completion bash", "completion zsh"),
    "federation": (
        "federation demo",
        "federation init --name 'stroke consortium' --host fed.example.org --schema schema.toml "
        "--silos hospital-a,hospital-b --tasks auto --cap-epsilon 8 --max-epsilon-per-job 1",
        "federation invite",
        "federation open",
        "federation ca init authority --name 'Hospital federation'",
        "federation enroll request --role silo --name north --keys keys --out north.csr",
    ),
    "join": ("join hospital-a.invitation --data /srv/data/patients.parquet",),
}
"""Examples by command, without the leading ``cloister``."""

FRONT = """\
cloister: private data mining for organisations that may not pool their records.

First steps:
  cloister demo                     three hospitals find groups of real patients, in seconds
  cloister ask FILES ...            from files to an answer, in one dialogue
  cloister schema init FILE         draft a schema of your columns, without reading values
  cloister check FILE --schema S    count usable rows, with the defects of the others
  cloister plan --schema S ...      show cost and expected error of an analysis, at no cost
  cloister describe FILES ...       describe each column, one file per silo; also: tabulate
  cloister cluster FILES ...        find groups; also: classify, regress, rules

All commands: cloister --help      One command, with examples: cloister cluster --help
"""
"""The output of ``cloister`` without arguments."""


def examples_of(command: str, prefix: str) -> str:
    """Return the examples of a command or, if `prefix` has any, of its action."""
    all_lines = EXAMPLES.get(command, ())
    lines = [line for line in all_lines if line.startswith(prefix)] or list(all_lines)
    return "\n".join(["examples:", *(f"  cloister {line}" for line in lines)]) if lines else ""


def example_over_files(command: str, options: str) -> str:
    """Return the example of a command over files, with options of its task."""
    return f"examples:\n  cloister {command} {_FILES} {options} {_COST} --out {command}"

"""Names the numbers of the yardstick that fail here, and do not fail on the page of results.

python scripts/new_failures.py build/nightly/yardstick docs/results
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

_FILE = "yardstick-failed.csv"
_PLACE = ["task", "dataset", "records", "epsilon", "name", "kind"]


def new_failures(found: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the first table whose place the second lacks."""
    both = found.merge(known[_PLACE], on=_PLACE, how="left", indicator=True)
    return both[both["_merge"] == "left_only"].drop(columns="_merge")


def main(found: str, known: str) -> int:
    """Print new failures; return 1 if there are any."""
    here = Path(found) / _FILE
    if not here.exists():  # nothing fails
        return 0
    new = new_failures(pd.read_csv(here), pd.read_csv(Path(known) / _FILE))
    print(new.to_string(index=False) if len(new) else "No number fails that did not fail before.")
    return min(len(new), 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Why few rows of a source can be used: a warning to their owner, at once and nowhere else.

No record may stop a job, so a file that was saved with decimal commas joins one as if it were
empty. Whoever sits at the file should hear of it before the job is paid for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.arrays import Flags
from cloister.data.cells import decoded, is_text
from cloister.data.encoding import WRONG, CellFlags

if TYPE_CHECKING:
    from cloister.data.sources import Raw

_LOOKED_AT = 1000  # rows of a chunk that are searched for a cause
_CAUSES = (  # how cells that hold no number look, and what to say of them
    (
        r"\A\s*\d{1,4}([./-])\d{1,2}[./-]\d{1,4}\b",
        'has dates; give it type = "date" and how they are written, as format = "%d.%m.%Y"',
    ),
    (
        r"\A\s*[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+\s*\z",
        'has a decimal comma; save its numbers with a decimal point, or set decimal = "," in the '
        'schema (thousands = "," if it parts groups of three digits)',
    ),
    (
        r"\A\s*[+-]?\d{1,3}([.,'\x{a0} ]\d{3})+([.,]\d*)?\s*\z",
        "has signs between thousands; set thousands in the schema to that sign",
    ),
    (
        r"\A\s*[+-]?\d+([.,]\d*)?\s*[^\d\s.,]+\s*\z",
        "has units behind its numbers; save them without",
    ),
)


class Tally:
    """What one pass over a source found; exact counts, which stay in this process."""

    def __init__(
        self, label: str, columns: Sequence[str], on_rows: Callable[[int], None] | None = None
    ) -> None:
        self._label, self._columns, self._on_rows = label, columns, on_rows
        self._rows = self._usable = self._bad_lines = 0
        self.causes: dict[int, str] = {}  # what is wrong with most wrong cells of a column

    def add(self, raw: Raw, flags: CellFlags, usable: int) -> None:
        """Count a chunk, of which `usable` rows are left; the flags say what is wrong with it."""
        self._rows += len(flags) + raw.bad_lines
        self._bad_lines += raw.bad_lines
        self._usable += usable
        if self._on_rows:
            self._on_rows(self._rows)
        if (wrong := flags & WRONG).any():
            self._look_at(raw.cells, wrong.astype(np.bool_))

    def doubt(self) -> str | None:
        """Return what to say to the owner; None if half of the rows or more can be used."""
        if self._rows and 2 * self._usable >= self._rows:
            return None
        if not self._rows:
            return f"{self._label} has no rows."
        cause = next(iter(self.causes.values()), "'cloister check' says what its cells break")
        if 2 * self._bad_lines > self._rows:
            cause = "most lines have a wrong number of fields, so look at the delimiter"
        few = "few" if self._usable else "none"
        return f"{few} of the rows of {self._label} can be used: {cause}."

    def _look_at(self, cells: Any, wrong: Flags) -> None:
        """Note what the wrong cells of each column of a chunk have in common; never a cell."""
        if isinstance(cells, np.ndarray):
            return
        import pyarrow as pa
        import pyarrow.compute as pc

        for j in np.flatnonzero(wrong.any(axis=0)).tolist():
            if j in self.causes:
                continue
            name = f"column {self._columns[j]!r}" if self._columns else f"column {j + 1}"
            column = decoded(cells[j]) if not isinstance(cells[j], np.ndarray) else None
            if column is None or not is_text(column.type):
                continue
            at = np.flatnonzero(wrong[:, j])[:_LOOKED_AT]
            # pa.array would import pandas
            rows = pa.Array.from_buffers(pa.int64(), len(at), [None, pa.py_buffer(at)])
            texts = column.take(rows).cast(pa.large_binary())
            for pattern, cause in _CAUSES:
                found = pc.match_substring_regex(texts, pattern=pattern)
                if 2 * pc.sum(found).as_py() > len(at):
                    self.causes[j] = f"{name} {cause}"
                    break
            else:
                if 2 * sum(_not_utf8(text) for text in texts.to_pylist()) > len(at):
                    self.causes[j] = (
                        f"{name} may not be in UTF-8; save the file in that encoding, or name its "
                        "own as encoding in the schema"
                    )


def _not_utf8(text: bytes | None) -> bool:
    """Return whether a text, which was read as Latin-1 to take any byte, is not UTF-8."""
    with suppress(UnicodeEncodeError):  # else it was never read so
        try:
            (text or b"").decode("utf-8", "replace").encode("latin1").decode()
        except UnicodeDecodeError:
            return True
    return False

"""The form of an answer, drawn from invented records: no file is read, and nothing is charged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cloister.app.answer import Answer, answer_of
from cloister.app.job import Job
from cloister.app.present import present
from cloister.app.progress import warnings_to
from cloister.core.arrays import Floats
from cloister.data import array_records
from cloister.protocol.task import PublicColumn

_ROWS = 2000  # a plan of this size takes at most seconds
_MOST_EPSILON = 100.0


def preview_of(job: Job, nominal_n: int) -> Answer:
    """Return the first screen of a job over invented records, within the schema's bounds.

    The noise is as large, relative to the number of records, as that of the job.
    """
    rows = min(_ROWS, nominal_n)
    epsilon = job.epsilon and min(job.epsilon * nominal_n / rows, _MOST_EPSILON)
    # Invented records have no column of people, so each is a unit.
    alone = {"unit": "row", "max_rows": None, "max_silos_per_person": 1}
    schema = job.schema.model_copy(update=alone)
    small = replace(job, schema=schema, nominal_n=rows, epsilon=epsilon, max_loss=1.0)
    plan = small.plan
    columns = [column for column in schema.public if column.name in plan.columns]
    table = _invented(columns, rows)
    silos = {
        name: array_records(table[i :: len(job.silos)], plan.grid)
        for i, name in enumerate(job.silos)
    }
    with warnings_to(lambda text: None):  # they are about the invented records
        return answer_of(present(small.run(silos)))


def _invented(columns: Sequence[PublicColumn], rows: int) -> Floats:
    """Return a table of evenly spread values, in which all columns rise together a little."""
    i = np.arange(1, rows + 1)
    # Multiples of irrational numbers, so that the same question has the same records.
    common = i * ((np.sqrt(5) - 1) / 2) % 1
    values = np.empty((rows, len(columns)))
    for j, column in enumerate(columns):
        share = (common + i * np.sqrt(j + 1.7) % 1) / 2
        if column.levels:
            values[:, j] = np.floor(share * column.levels)
        else:
            exact = column.low + share * (column.high - column.low)
            values[:, j] = np.round(exact / column.step) * column.step if column.step else exact
    return values

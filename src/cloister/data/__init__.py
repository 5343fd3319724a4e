"""The reader: it encodes the cells of tables and files as grid integers, by public rules.

The columns of a source are checked first; a mistake there is a `DataError`. The content of a record
is never an error, so no record can stop a job. The schema's rules apply to a cell that is missing,
of the wrong type, in no category or out of range. The meaning of a cell depends only on the cell,
the schema and public settings: see the table of `cloister.data.cells`.

A source is one of these:

- an array, a list of rows, or a table of pandas, polars (also lazy), DuckDB or Arrow;
- a file: text (``.csv``, ``.tsv``, ``.txt``, ``.data``, also ``.gz``, ``.bz2``, ``.zst``),
  Parquet, or ``.xlsx``;
- a folder of Parquet files, an Arrow dataset, a `SqlQuery`, a `Labelled` table, or `Baskets`.

The first line of a text table names its columns. Its delimiter is detected there or declared.
"""

from cloister.data.baskets import Baskets
from cloister.data.check import check_file, fitted
from cloister.data.loss import MAX_LOSS, is_above, loss_notice, refuse_loss, reports_of, roles_of
from cloister.data.reading import LOCAL_NOTE, ColumnReading, ReadingReport
from cloister.data.records import (
    MEMORY_LIMIT,
    Records,
    array_records,
    as_silos,
    declared_types,
    header,
    read_cells,
    read_floats,
    read_rows,
    read_source,
    read_words,
)
from cloister.data.remedies import Remedy
from cloister.data.sources import Labelled, SqlQuery, is_frame, is_table, similar_columns

__all__ = [
    "LOCAL_NOTE",
    "MAX_LOSS",
    "MEMORY_LIMIT",
    "Baskets",
    "ColumnReading",
    "Labelled",
    "ReadingReport",
    "Records",
    "Remedy",
    "SqlQuery",
    "array_records",
    "as_silos",
    "check_file",
    "declared_types",
    "fitted",
    "header",
    "is_above",
    "is_frame",
    "is_table",
    "loss_notice",
    "read_cells",
    "read_floats",
    "read_rows",
    "read_source",
    "read_words",
    "refuse_loss",
    "reports_of",
    "roles_of",
    "similar_columns",
]

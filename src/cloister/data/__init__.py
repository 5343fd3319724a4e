"""Records in: tables and files become integers of the grid, by public rules, cell by cell.

Which columns a source has is checked before anything else, and a mistake there is a `DataError`.
What the records hold is never an error: a cell that is missing, of the wrong type, no category of
the schema or out of range follows the schema's rule, so that nothing about a record can stop a job.
What a cell means depends on the cell, the schema and public settings alone: see the table of
`cloister.data.cells`.

A source is an array, a list of rows, a table of pandas, polars (also lazy), DuckDB or Arrow, a
file (text ``.csv``, ``.tsv``, ``.txt``, ``.data``, also ``.gz``, ``.bz2``, ``.zst``; Parquet;
``.xlsx``), a folder of Parquet files, an Arrow dataset, a `SqlQuery`, a `Labelled` table, or
`Baskets`. The first line of a text table names its columns; its delimiter is found there or
declared.
"""

from cloister.data.baskets import Baskets
from cloister.data.check import check_file
from cloister.data.loss import MAX_LOSS, is_above, loss_notice, refuse_loss, reports_of, roles_of
from cloister.data.reading import LOCAL_NOTE, ColumnReading, ReadingReport, Remedy
from cloister.data.records import (
    MEMORY_LIMIT,
    Records,
    array_records,
    as_silos,
    declared_types,
    header,
    read_floats,
    read_rows,
    read_source,
    read_words,
)
from cloister.data.sources import Labelled, SqlQuery, is_frame, is_table

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
    "header",
    "is_above",
    "is_frame",
    "is_table",
    "loss_notice",
    "read_floats",
    "read_rows",
    "read_source",
    "read_words",
    "refuse_loss",
    "reports_of",
    "roles_of",
]

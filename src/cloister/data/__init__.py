"""Records in: tables and files become integers of the grid, by public rules, record by record.

Which columns a source has is checked before anything else, and a mistake there is a `DataError`.
What the records hold is never an error: a cell that is missing, of the wrong type, no category of
the schema or out of range follows the schema's rule, so that nothing about a record can stop a job.

A source is an array, a list of rows, a pandas, polars or Arrow table, the path of a text table
(``.csv``, ``.tsv``, ``.txt``, ``.data``; also ``.gz``, ``.bz2``, ``.zst``) or of a Parquet file, or
a folder of Parquet files, or an Arrow dataset, or a `SqlQuery`, or `Baskets`. Text tables have one
header line; their delimiter is found in that line.
"""

from cloister.data.baskets import Baskets
from cloister.data.check import CheckReport, ColumnCheck, check_file
from cloister.data.records import (
    LOCAL_NOTE,
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
from cloister.data.sources import SqlQuery

__all__ = [
    "LOCAL_NOTE",
    "MEMORY_LIMIT",
    "Baskets",
    "CheckReport",
    "ColumnCheck",
    "Records",
    "SqlQuery",
    "array_records",
    "as_silos",
    "check_file",
    "declared_types",
    "header",
    "read_floats",
    "read_rows",
    "read_source",
    "read_words",
]

"""Analyses of columns that one person has at several owners; nobody learns who is in both.

Owners upload tables sorted by keyed tags, as bits under XOR shares. The two servers merge them on
shares, keep joined rows up to a noisy number, and open noisy answers alone
(docs/proofs/linking.md).
"""

from cloister.shares.linking.analyses import Analysis, Correlation, Linear, Means, Table
from cloister.shares.linking.answer import Answer
from cloister.shares.linking.columns import Column, Side
from cloister.shares.linking.descents import KMeans, Logistic
from cloister.shares.linking.found import Found
from cloister.shares.linking.keys import Part
from cloister.shares.linking.program import Linked
from cloister.shares.linking.table import LinkedTable

__all__ = [
    "Analysis",
    "Answer",
    "Column",
    "Correlation",
    "Found",
    "KMeans",
    "Linear",
    "Linked",
    "LinkedTable",
    "Logistic",
    "Means",
    "Part",
    "Side",
    "Table",
]

"""The yardstick: each released number beside the textbook analysis that its reader compares it to.

`tables` are public tables, `readings` the words of all families, `numbers`, `crosses`, `times` and
`models` the families of tasks, `tally` the figures of a cell, and `experiment` units and page.
"""

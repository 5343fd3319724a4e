"""Sharp tools: exact samplers, the fixed-point grid, the ring and the mask generator.

Each function is correct only under the pre-conditions in its docstring. Most users want
:class:`cloister.DPKMeans` or the ``cloister`` command.
"""

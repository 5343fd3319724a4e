"""Sharp tools: exact samplers, the fixed-point grid, the ring and the mask generator.

The import path is the warning: everything here is correct only under the pre-conditions that its
docstring states. Most users want :class:`cloister.DPKMeans` or the ``cloister`` command.
"""

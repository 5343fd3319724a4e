"""A wing of its own: programs over secret shares, and models that are applied on them."""

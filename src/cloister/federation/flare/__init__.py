"""NVIDIA FLARE: its channel as our transport, a site as a silo, one FLARE job per plan."""

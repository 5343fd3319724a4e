"""NVIDIA FLARE: its channel as the transport, a site as a silo, one FLARE job per plan."""

"""Transports: how frames reach the silos. Each knows the protocol, never a task."""

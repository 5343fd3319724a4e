"""Transports, which carry frames to the silos. They know the protocol, but no task."""

"""Silos and a coordinator as processes: service, agents, transports, keys and their settings."""

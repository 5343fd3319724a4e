"""The commands of this room, which ``cloister.core.hooks`` names."""

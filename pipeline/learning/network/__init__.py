"""Stacked networks of a pack: layers, parameters, forward pass."""

"""The networks of a pack, stacked: layers, parameters, forward pass."""

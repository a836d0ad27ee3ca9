"""The networks of a pack, stacked: layers, parameters, forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.package import lazy

if TYPE_CHECKING:
    from pipeline.learning.network.network import Network, Parameters, make_network

__all__ = ["Network", "Parameters", "make_network"]

__getattr__, __dir__ = lazy(__name__, {"Network": "network", "Parameters": "network", "make_network": "network"})

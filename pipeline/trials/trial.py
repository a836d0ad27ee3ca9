"""A trial as its parts see it, so that parts need not import the class that is composed of them."""

from __future__ import annotations

from typing import Any, Protocol


class Trial(Protocol):
    """A `config.TrialConfig`: every setting is an attribute, beside its other attributes."""

    @property
    def parts(self) -> Any: ...

    def __hash__(self) -> int: ...

    def __getattr__(self, name: str) -> Any: ...

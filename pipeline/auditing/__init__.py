"""Auditing: measurements by attacks, compared with claimed or certified epsilons.

Each attack has a module, and `accounting.audited` computes the bounds; `audit` is the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.package import lazy

if TYPE_CHECKING:
    from pipeline.auditing.two_point import audit_release

__all__ = ["audit_release"]

__getattr__, __dir__ = lazy(__name__, {"audit_release": "two_point"})

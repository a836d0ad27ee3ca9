"""Privacy accounting: the epsilons that a trial may state, and their meaning.

Each kind of epsilon has a module, and `statement` lists all of them for one trial. `certified` turns a trial into a
privacy event; `event` and `curves` have the accountants for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.package import lazy

if TYPE_CHECKING:
    from pipeline.accounting.epsilon import Epsilon
    from pipeline.accounting.statement import account, describe, privacy_tags

__all__ = ["Epsilon", "account", "describe", "privacy_tags"]

__getattr__, __dir__ = lazy(__name__, {"Epsilon": "epsilon", "account": "statement", "describe": "statement",
                                       "privacy_tags": "statement"})

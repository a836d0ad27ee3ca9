"""Privacy accounting: what every trial may, and may not, say about its privacy.

One module per kind of epsilon; `statement` says all of them of one trial. Accountants of certified epsilon are in
`event`, their curves in `curves`; `certified` goes from a trial to the event that they account for.
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

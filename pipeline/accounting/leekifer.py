"""The published accounting of Lee & Kifer (2020): differentially private DFA by component clipping, replace-one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline.accounting.curves import (
    ORDERS,
    classic_conversion,
    improved_conversion,
    lemma3_rdp,
    without_replacement_rdp,
)


def leekifer_sensitivity(gamma: float, beta: float, tau_e: float, tau_h: float, L: int, m: int) -> float:
    """Return the replace-one sensitivity of the mean update of L equal layers (Lee & Kifer 2020, Section 4.2).

        2 gamma beta tau_e sqrt((1 + tau_h^2) L)/m

    gamma bounds |phi'|, the slope of the activation; beta is the spectral norm of the feedback matrices; tau_e and
    tau_h are norms to which error and activations are clipped.
    """
    return 2 * gamma * beta * tau_e * math.sqrt((1 + tau_h**2) * L) / m


def leekifer_epsilon(N: int, m: int, noise_multiplier: float, T: int, delta: float,
                     orders: Sequence[int] = ORDERS) -> dict[str, float]:
    """Return epsilon of T steps on batches of m out of N records (Wang, Balle & Kasiviswanathan 2019, Theorem 27).

    The noise multiplier is sigma m/sensitivity, for noise of standard deviation sigma on the mean. The published table
    is `epsilon_classic`, truncated to two decimals; `order` attains it. `epsilon_improved` converts the same curve
    tighter.
    """
    orders = tuple(orders)
    curve = T * without_replacement_rdp(m / N, noise_multiplier, orders)
    classic, order = classic_conversion(orders, curve, delta)
    improved, _ = improved_conversion(orders, curve, delta)
    return {"epsilon_classic": classic, "order": order, "epsilon_improved": improved}


def leekifer_epsilon_lemma3_printed(N: int, m: int, noise_multiplier: float, T: int, delta: float,
                                    orders: Sequence[int] = ORDERS) -> dict[str, float]:
    """Return the classic epsilon and its order by Lemma 3 as printed, which does not give the paper's own numbers."""
    orders = tuple(orders)
    curve = T * lemma3_rdp(m / N, noise_multiplier, orders)
    classic, order = classic_conversion(orders, curve, delta)
    return {"epsilon_classic": classic, "order": order}

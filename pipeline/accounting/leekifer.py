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

    Args:
        gamma: bound of |phi'|, the slope of the activation.
        beta: spectral norm of the feedback matrices.
        tau_e, tau_h: Euclidean norms to which the error and the activations are clipped.
        L: layers.
        m: batch size.
    """
    return 2 * gamma * beta * tau_e * math.sqrt((1 + tau_h**2) * L) / m


def leekifer_epsilon(N: int, m: int, noise_multiplier: float, T: int, delta: float,
                     orders: Sequence[int] = ORDERS) -> dict[str, float]:
    """Return epsilon of T steps on batches of m out of N records (Wang, Balle & Kasiviswanathan 2019, Theorem 27).

    The published table is `epsilon_classic`, truncated to two decimals.

    Args:
        N, m, T: numbers of records, of records in a batch, and of steps.
        noise_multiplier: sigma m/sensitivity, for noise of standard deviation sigma on the mean.
        orders: of the Renyi divergence, integers >= 2.

    Returns:
        epsilon_classic, the order that attains it, and epsilon_improved (the tighter conversion of the same curve).
    """
    orders = tuple(orders)
    curve = T * without_replacement_rdp(m / N, noise_multiplier, orders)
    classic, order = classic_conversion(orders, curve, delta)
    improved, _ = improved_conversion(orders, curve, delta)
    return {"epsilon_classic": classic, "order": order, "epsilon_improved": improved}


def leekifer_epsilon_lemma3_printed(N: int, m: int, noise_multiplier: float, T: int, delta: float,
                                    orders: Sequence[int] = ORDERS) -> dict[str, float]:
    """Return the classic epsilon and its order as `leekifer_epsilon`, with the Renyi divergence of Lemma 3 as printed.

    It does not reproduce the paper's own numbers. Arguments as in `leekifer_epsilon`.
    """
    orders = tuple(orders)
    curve = T * lemma3_rdp(m / N, noise_multiplier, orders)
    classic, order = classic_conversion(orders, curve, delta)
    return {"epsilon_classic": classic, "order": order}

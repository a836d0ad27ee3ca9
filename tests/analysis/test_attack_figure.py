"""The figure of the attack, from synthetic residuals: labels, n, AUC, and the shares that are drawn."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from row_space import plot, residual_histogram

RNG = np.random.default_rng(0)
FAR = RNG.uniform(0.2, 0.6, 1000)
OVERLAP = RNG.uniform(0.2, 0.6, 50)


def axes():
    return Figure().subplots()


def test_panels_side_by_side():
    figure = plot({"photonic": (np.zeros(20), FAR), "certified": (OVERLAP, FAR)})
    assert [ax.get_title() for ax in figure.axes] == ["photonic", "certified"]
    assert figure.get_size_inches().tolist() == [6.75, 2.3]
    with pytest.raises(ValueError, match="panels: must be at least one"):
        plot({})


@pytest.mark.parametrize("members, non_members, message", [
    (np.array([]), FAR, "members: must be residuals"), (np.array([0.1, np.nan]), FAR, "members: must be"),
    (np.array([-0.1]), FAR, "members: must be"), (OVERLAP, np.array([1.2]), "non_members: must be"),
    (OVERLAP[None], FAR, "members: must be")])
def test_refuses_what_is_no_residual(members, non_members, message):
    with pytest.raises(ValueError, match=message):
        residual_histogram(members, non_members, axes())

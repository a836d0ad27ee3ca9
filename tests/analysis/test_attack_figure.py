"""The figure of the attack, from synthetic residuals: labels, n, AUC, and the shares that are drawn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from matplotlib.figure import Figure

from analysis.papers.row_space import ZERO, plot, residual_histogram

RNG = np.random.default_rng(0)
FAR = RNG.uniform(0.2, 0.6, 1000)
OVERLAP = RNG.uniform(0.2, 0.6, 50)


def axes():
    return Figure().subplots()


def share(ax, low, high, filled):
    """Summed heights (%) of the filled (non-members) or outlined (members) histogram between two residuals."""
    patch, = (p for p in ax.patches if bool(p.get_fill()) == filled)
    xy = patch.get_xy()
    tops = {(a[0], b[0]): a[1] for a, b in itertools.pairwise(xy) if a[1] == b[1] > 0 and b[0] > a[0]}
    return sum(height for (left, right), height in tops.items() if low <= left and right <= high)


def test_separated_members_stand_at_zero_of_a_logarithmic_axis():
    ax = residual_histogram(np.zeros(20), FAR, axes())
    assert ax.get_xscale() == "log"
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels[0] == "0" and ax.get_xticks()[0] == ZERO
    assert share(ax, 0, 2 * ZERO, filled=False) == pytest.approx(100)
    assert share(ax, 0, 0.1, filled=True) == 0
    assert share(ax, 0.1, 1.1, filled=True) == pytest.approx(100)
    filled, outlined = sorted(ax.patches, key=lambda patch: not patch.get_fill())
    assert filled.get_facecolor()[:3] != outlined.get_edgecolor()[:3]


def test_overlapping_residuals_have_a_linear_axis():
    ax = residual_histogram(OVERLAP, FAR, axes())
    assert ax.get_xscale() == "linear"
    for filled in (True, False):
        assert share(ax, 0.19, 0.61, filled) == pytest.approx(100)


def test_labels_say_units_n_and_auc():
    ax = residual_histogram(np.zeros(20), FAR, axes())
    assert ax.get_xlabel() == "Residual ‖h − Ph‖ / ‖h‖ (share of the norm)"
    assert ax.get_ylabel() == "Share of records (%)"
    assert {t.get_text() for t in ax.get_legend().get_texts()} == {"members (n = 20)", "non-members (n = 1,000)"}
    assert ax.get_legend().get_title().get_text() == "AUC 1.000"
    assert residual_histogram(FAR, np.zeros(20), axes()).get_legend().get_title().get_text() == "AUC 0.000"


def test_panels_side_by_side():
    figure = plot({"photonic": (np.zeros(20), FAR), "certified": (OVERLAP, FAR)})
    assert [ax.get_title() for ax in figure.axes] == ["photonic", "certified"]
    assert figure.get_size_inches().tolist() == [9, 3]
    with pytest.raises(ValueError, match="panels: must be at least one"):
        plot({})


@pytest.mark.parametrize("members, non_members, message", [
    (np.array([]), FAR, "members: must be residuals"), (np.array([0.1, np.nan]), FAR, "members: must be"),
    (np.array([-0.1]), FAR, "members: must be"), (OVERLAP, np.array([1.2]), "non_members: must be"),
    (OVERLAP[None], FAR, "members: must be")])
def test_refuses_what_is_no_residual(members, non_members, message):
    with pytest.raises(ValueError, match=message):
        residual_histogram(members, non_members, axes())

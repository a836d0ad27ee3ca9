"""The colours of the figures: told apart with any colour vision, and never the only difference."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from analysis.style import MARKERS, PALETTE, look
from pipeline.trials.part import PARTS

MACHADO = {  # Machado, Oliveira & Fernandes 2009, severity 1.0, in linear RGB
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(color):
    color = np.asarray(to_rgb(color))
    return np.where(color <= 0.04045, color / 12.92, ((color + 0.055) / 1.055) ** 2.4)


def luminance(color):
    """Relative luminance of an sRGB colour, three fractions."""
    return XYZ[1] @ linear(color)


def contrast(a, b):
    """WCAG 2 contrast ratio of two sRGB colours."""
    one, other = (luminance(color) + 0.05 for color in (a, b))
    return max(one, other) / min(one, other)


def least_difference(colors, vision):
    """CIE 1976 colour difference of the closest two, as this vision sees them; 2.3 is just noticeable."""
    def lab(color):
        x = XYZ @ np.clip(np.array(MACHADO[vision]) @ linear(color), 0, 1) / XYZ.sum(axis=1)
        f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
        return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])
    return min(np.linalg.norm(lab(a) - lab(b)) for a, b in itertools.combinations(colors, 2))


@pytest.mark.parametrize("vision", MACHADO)
def test_algorithms_are_told_apart_with_any_colour_vision_and_without(vision):
    assert least_difference(PALETTE.values(), vision) > 10
    assert len(set(MARKERS.values())) == len(MARKERS) == len(PALETTE)


def test_every_algorithm_has_a_colour_marker_line_and_label_of_its_own():
    for part in ("color", "marker", "linestyle", "label"):
        assert len({str(look(algorithm)[part]) for algorithm in PARTS["algorithm"]}) == len(PARTS["algorithm"]), part

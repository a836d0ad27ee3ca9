"""Feedback paths and projectors: how an error becomes a learning signal for every layer."""

from __future__ import annotations

import math
from typing import ClassVar

from pipeline.trials.condition import Need, Trial, not_chosen, positive
from pipeline.trials.fields import listed_or, refuse
from pipeline.trials.part import PARTS, Part, again, part, setting


class Feedback(Part):
    """An algorithm's settings, and what other parts must know of it."""

    projectors: ClassVar[tuple[str, ...]] = ("none",)  # which it accepts, the default first
    # Why a record's learning signals depend on no other record of the batch, which certified mechanisms assume.
    per_record: ClassVar[str | None] = None  # empty if this package states it, None if nobody does
    exact: ClassVar[bool] = False  # whether it is back-propagation
    matrix: ClassVar[bool] = False  # whether it projects by a matrix B of this package
    ternary: ClassVar[bool] = False  # whether the projected error is ternarized
    convolutional: ClassVar[bool] = False  # whether it needs convolutions, through which it back-propagates
    described: ClassVar[bool] = False  # whether the photonic mechanism is described for it
    optical: ClassVar[bool] = False  # whether light projects the error
    not_integer = "nothing is known of how its products round"

    def check(self, trial: Trial) -> None:
        """Refuse projectors that the algorithm does not accept."""
        hint = "algorithm 'pdfa' is tdfa through an OPU" if self.ternary and not self.optical else ""
        refuse(trial.projector not in self.projectors, "projector", f"{self.name} takes {listed_or(self.projectors)}",
               f"'{trial.projector}'", hint)


class _BuiltIn(Feedback):
    """A path of this package: a record's signals depend on this record alone."""

    per_record, not_integer = "", ""
    described = True


class Direct(_BuiltIn):
    """A path with a matrix B."""

    projectors: ClassVar[tuple[str, ...]] = ("gaussian",)
    matrix = True

@part("algorithm", "bp")
class BackPropagation(_BuiltIn):
    """Back-propagation (Eq. 3)."""

    label, exact = "BP", True

@part("algorithm", "dfa")
class Dfa(Direct):
    """Direct feedback alignment (Eq. 4)."""

    label = "DFA"


@part("algorithm", "tdfa")
class Tdfa(Direct):
    """DFA from ternarized errors (Ohana et al. 2021, section 4)."""

    label, ternary = "TDFA", True
    threshold: float = setting(
        0.15, "t: an error beyond +-t becomes +-1, others 0", low=0, high=1, open_high=True, per_trial=True)
    feedback_centered: bool = setting(
        False, "subtract from B its mean over classes: ternary errors, which do not sum to 0, then push no unit for "
        "being unbalanced; of a real OPU the mean is measured once", needs=[not_chosen("mechanism", "photonic")])


_NEEDS_SUM = Need("mechanism", "with a certified epsilon", lambda c: c.parts.mechanism.certified)


@part("algorithm", "pdfa")
class Pdfa(Direct):
    """TDFA with an OPU as projector; its light adds noise under any mechanism with noise."""

    label, ternary, optical = "PDFA", True, True
    projectors = ("opu_simulated", "opu_hardware")
    threshold: float = again("threshold")
    feedback_centered: bool = again("feedback_centered", not_chosen("mechanism", "photonic"))
    sigma: float = setting(
        0.0, "standard deviation of the optical noise g, per component (Eq. 10)", low=0, per_trial=True,
        needs=[_NEEDS_SUM])
    tau_f: float = setting(
        1.0, "s = tau_f: bound on ||B e||, and on ||e|| in the output layer (Eq. 9, tau_B)", low=0, open_low=True,
        per_trial=True, needs=[_NEEDS_SUM, positive("sigma")])


@part("algorithm", "hybrid")
class Hybrid(Direct):
    """DFA in fully connected layers, back-propagation through convolutions (Lee & Kifer 2020, section 4.2)."""

    label, convolutional, described = "BP/DFA", True, False
    not_integer = "it back-propagates through convolutions"


class Projector(Part):
    """The settings of what computes B e, and what other parts must know of it."""

    on_opu: ClassVar[bool] = False  # whether a trial with it must reserve an `OPU` resource
    hardware: ClassVar[bool] = False  # whether it is a real OPU, which only one process can open
    known: ClassVar[bool] = True  # whether the matrix B is known


@part("projector", "none")
class NoProjector(Projector):
    """No projection."""

    known = False


@part("projector", "gaussian")
class GaussianMatrix(Projector):
    """A matrix of independent Gaussian entries."""

    feedback_std: float = setting(
        1.0, "standard deviation of the entries of B (of the hardware: of its rescaled output)", low=0, open_low=True)
    feedback_by_width: bool = setting(
        False, "divide B of every layer or block by the root of its width: B e is then as long for a wide one as for a "
        "narrow one, and takes as large a share of C", elide=True,
        needs=[Need("mechanism", "other than 'component'", lambda trial: not trial.parts.mechanism.feedback_norm)])


@part("projector", "opu_simulated")
class SimulatedOpu(GaussianMatrix):
    """lightonml's simulated device."""

    on_opu = True

@part("projector", "opu_hardware")
class HardwareOpu(SimulatedOpu):
    """A real OPU."""

    hardware, known = True, False
    not_integer = "nobody has shown that a real OPU projects a record without a trace of others"

    def check(self, trial: Trial) -> None:
        """Refuse secret noise."""
        refuse(trial.secure, "projector", "nobody has shown that a real OPU projects a record without a trace of "
               "others, on which a guarantee to the last bit rests", "'opu_hardware' with noise 'secure'",
               "use 'opu_simulated'")


def is_centered(trial: Trial) -> bool:
    """Whether B loses its mean over classes."""
    return bool(trial.canonical().get("feedback_centered", False))  # absent if the trial does not use it


def width_factor(trial: Trial, width: int) -> float:
    """Return by what B of a layer of this width is multiplied."""
    by_width = trial.canonical().get("feedback_by_width", False)  # absent if the trial does not use it
    return 1 / math.sqrt(width) if by_width else 1.0


def algorithm_labels() -> dict[str, str]:
    """Return names for tables and figures; `softmax` has no hidden layers (`naming.method`)."""
    return {"softmax": "Softmax regression", **{name: cls.label for name, cls in PARTS["algorithm"].items()}}


# Of methods in figures and on MLflow's page, from seaborn's palette `colorblind`; extensions have others.
COLOURS = {"softmax": "#949494", "bp": "#0173b2", "dfa": "#029e73", "tdfa": "#cc78bc", "pdfa": "#d55e00",
           "hybrid": "#de8f05"}

"""What the settings of a trial may be, by name.

`register_feedback` and `register_mechanism` add to the dictionaries here, `register_dataset` to those of
`pipeline.trials.datasets`, `register_features` to that of `pipeline.trials.features` (docs/extending.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field

from pipeline.trials.features import FEATURES

PROJECTORS = ("none", "gaussian", "opu_simulated", "opu_hardware", "opu_physical")
SAMPLERS = ("shuffled", "without_replacement", "poisson")
RELATIONS = ("add/remove", "replace-one")
NETWORKS = ("mlp", "convnet")
ACTIVATION_SLOPES = {"tanh": 1.0, "sigmoid": 0.25, "relu": 1.0}  # gamma: the supremum of phi', whose infimum is 0
ACTIVATION_SUPREMA = {"tanh": 1.0, "sigmoid": 1.0, "relu": math.inf}  # of |phi|
ACTIVATIONS = tuple(ACTIVATION_SLOPES)
INPUTS = ("centered", "standardized", "unit")
OPTIMIZERS = ("sgd", "adam")
SCHEDULES = ("constant", "linear", "cosine")
INITS = ("uniform", "glorot")
OUTPUT_INITS = ("uniform", "zero", "feedback")
BOUNDINGS = ("clip", "scale")  # of component clipping, as the next three
TAU_H_RULES = ("per_layer", "published")
CONV_ERRORS = ("clipped", "raw")
CONV_CLIPS = ("together", "apart")
PRECISIONS = ("float32", "bfloat16")
NOISE_SOURCES = ("research", "secure")
DISCLOSURES = ("plain", "noisy", "withheld")  # what is logged of private records

OPU_PROJECTORS = ("opu_simulated", "opu_hardware", "opu_physical")


@dataclass(frozen=True)
class Choice:
    """What the configuration knows of an algorithm or a mechanism.

    Attributes:
        projectors: that an algorithm may have, its default first.
        settings: fields that an extension uses beyond those whose own rule says so.
        own: settings that an extension has for itself, by name.
    """

    projectors: tuple[str, ...] = ("none",)
    settings: tuple[str, ...] = ()
    own: Mapping[str, Field] = field(default_factory=dict)


ALGORITHMS = {"bp": Choice(), "dfa": Choice(("gaussian",)), "tdfa": Choice(("gaussian",)),
              "pdfa": Choice(OPU_PROJECTORS), "hybrid": Choice(("gaussian",))}
# The first is no algorithm: frontiers call networks without hidden layers so (`naming.method`).
ALGORITHM_LABELS = {"softmax": "Softmax regression", "bp": "BP", "dfa": "DFA", "tdfa": "TDFA", "pdfa": "PDFA",
                    "hybrid": "BP/DFA"}
TERNARY = ("tdfa", "pdfa")
DIRECT = ("dfa", "tdfa", "pdfa", "hybrid")  # algorithms with a matrix B
PHOTONIC = ("bp", "dfa", "tdfa", "pdfa")  # algorithms that the photonic mechanism is described for

MECHANISMS = {"none": Choice(), "photonic": Choice(), "component": Choice(), "per_example": Choice()}

# What a certified epsilon rests on, by name; the text is why it holds where an extension says so, empty where this
# package does. Who is not in here has no certified epsilon.
PER_RECORD = dict.fromkeys(ALGORITHMS, "")  # a record's learning signals depend on no other record
GAUSSIAN = {"component": "", "per_example": ""}  # contributions of norm C at most, Gaussian noise on their sum
# By how much rounding in float64 can lengthen a contribution that such a mechanism has bounded, relative to the bound,
# as a function of the widest layer's inputs and outputs and of the number of layers; an extension states a number.
# None, or nothing, is not stated, and noise `secure` refuses it.
ROUNDING: dict[str, Callable[[int, int], float] | None] = dict.fromkeys(
    ("component", "per_example"), lambda widest, layers: (2 * widest + layers + 16) * 2.0**-53)


def own_settings(but: str = "") -> dict[str, Field]:
    """The settings that registered extensions have for themselves, but for those of one of them."""
    choices = (*ALGORITHMS.items(), *MECHANISMS.items(), *FEATURES.items())
    return {name: own for extension, choice in choices if extension != but for name, own in choice.own.items()}


def relation_of(sampler: str) -> str:
    """The neighbouring relation of batches that are drawn so: Poisson batches leave the number of records open, others
    take it as public."""
    return {"poisson": "add/remove", "without_replacement": "replace-one", "shuffled": "replace-one"}[sampler]

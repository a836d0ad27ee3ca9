"""What the settings of a trial may be, by name."""

from __future__ import annotations

ALGORITHMS = ("bp", "dfa", "tdfa", "pdfa", "hybrid")
MECHANISMS = ("none", "photonic", "component", "per_example")
PROJECTORS = ("none", "gaussian", "opu_simulated", "opu_hardware")
SAMPLERS = ("shuffled", "without_replacement", "poisson")
NETWORKS = ("mlp", "convnet")
ACTIVATION_SLOPES = {"tanh": 1.0, "sigmoid": 0.25, "relu": 1.0}  # gamma: the supremum of phi', whose infimum is 0
ACTIVATIONS = tuple(ACTIVATION_SLOPES)
INPUTS = ("centered", "standardized", "unit")
OPTIMIZERS = ("sgd", "adam")
PRECISIONS = ("float32", "bfloat16")
NOISE_SOURCES = ("research", "secure")

TERNARY = ("tdfa", "pdfa")
GAUSSIAN = ("component", "per_example")
OPU_PROJECTORS = ("opu_simulated", "opu_hardware")

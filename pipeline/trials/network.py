"""Networks: fully connected layers, with or without convolutions before them, or a module of the user.

The blocks of feedback in a user's module are its children. `pipeline.learning.own.register` enters it, and builds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from pipeline.trials.condition import Trial, chosen
from pipeline.trials.fields import listed_or, refuse
from pipeline.trials.part import Part, again, names_with, part, setting
from pipeline.trials.shapes import LayerShape, conv_shapes, dense_shapes

ACTIVATION_SLOPES = {"tanh": 1.0, "sigmoid": 0.25, "relu": 1.0}  # gamma: the supremum of phi'; the infimum is 0
ACTIVATIONS = tuple(ACTIVATION_SLOPES)


class Network(Part):
    """Settings of all networks."""

    convolutional: ClassVar[bool] = False  # whether layers share weights over positions
    own: ClassVar[bool] = False  # whether it is a user's module
    hidden: tuple[int, ...] = setting((512, 512), "widths of the hidden fully connected layers")
    activation: str = setting("tanh", "activation phi of the hidden fully connected layers", choices=ACTIVATIONS)
    input_norm: float = setting(
        0.0, "Euclidean norm to which every record's input is scaled; 0 leaves it as it is", low=0)
    init: str = setting(
        "uniform", "layers at the start: weights and biases `uniform` on +-1/sqrt(inputs of a unit), or weights "
        "uniform on +-sqrt(6/(fan_in + fan_out)) and biases 0 (`glorot`; Glorot and Bengio 2010)",
        choices=("uniform", "glorot"))
    init_gain: float = setting(
        1.0, "factor on the weights and biases with which layers start", low=0, open_low=True)
    output_init: str = setting(
        "uniform", "output layer at the start: as `init` says of all layers (`uniform`); at `zero`; or a multiple of "
        "the last hidden layer's B (`feedback`), with which feedback is aligned from the start",
        choices=("uniform", "zero", "feedback"))
    output_std: float = setting(
        0.2, "standard deviation of the entries of an output layer that starts as a multiple of B", low=0,
        open_low=True, needs=[chosen("output_init", "feedback")])

    @property
    def lower_layers(self) -> int:
        """Return how many layers, from the lowest, algorithm `hybrid` back-propagates through."""
        return 0

    def convolutions(self, shape: tuple[int, ...]) -> tuple[LayerShape, ...]:
        """Return the shapes of the convolutions for records of this shape; here there are none."""
        return ()

    def layers(self, shape: tuple[int, ...], n_classes: int) -> tuple[LayerShape, ...]:
        """Return the shapes of layers 1..L, convolutions first, for features of this shape."""
        below = self.convolutions(shape)
        n_in = below[-1].n_out if below else math.prod(shape)
        return (*below, *dense_shapes((n_in, *self.hidden, n_classes)))

    def why_alone(self, trial: Trial) -> str:
        """Return why records are computed one after the other: those of this package's networks never are."""
        return ""

    def check(self, trial: Trial) -> None:
        """Refuse feedback without hidden layers, and an initialisation that needs a matrix B unless B is known."""
        refuse(not self.hidden and self.convolutional, "hidden", "must be at least one layer with network 'convnet', "
               "whose convolutions end in fully connected layers", "[]")
        refuse(not self.hidden and not trial.parts.feedback.exact, "hidden", "without hidden layers there is nothing "
               "to project an error to, and all algorithms are the softmax regression that 'bp' with network 'mlp' "
               "trains", f"[] with algorithm '{trial.algorithm}' and network '{trial.network}'")
        refuse(self.output_init == "feedback" and not trial.parts.projector.known, "output_init",
               "'feedback' needs a feedback matrix B that is known",
               f"it with algorithm '{trial.algorithm}' and projector '{trial.projector}'", "use 'uniform' or 'zero'")


@part("network", "mlp")
class Mlp(Network):
    """Fully connected layers."""

    def check(self, trial: Trial) -> None:
        """Refuse an algorithm that needs convolutions."""
        super().check(trial)
        refuse(trial.parts.feedback.convolutional, "algorithm", "hybrid back-propagates through convolutions, of which "
               "network 'mlp' has none", "'hybrid'", "use network 'convnet', or algorithm 'dfa'")


@part("network", "convnet")
class Convnet(Network):
    """Convolutions with 2 x 2 max pools before fully connected layers."""

    convolutional = True
    not_integer = "truncating at every position can lengthen a convolution's sum over positions"
    channels: tuple[int, ...] = setting((64, 64), "filters of the convolutions")
    kernel: int = setting(5, "rows and columns of a filter, odd", low=1)
    conv_activation: str = setting("tanh", "activation phi of the convolutions", choices=ACTIVATIONS)

    @property
    def lower_layers(self) -> int:
        return len(self.channels)  # all convolutions

    def convolutions(self, shape: tuple[int, ...]) -> tuple[LayerShape, ...]:
        """Return one shape for each of `channels`."""
        channels, rows, columns = shape
        return conv_shapes((channels, rows, columns), self.channels, self.kernel)

    def check(self, trial: Trial) -> None:
        """Refuse records that are no images, or too small ones."""
        features, shape = trial.parts.features, trial.parts.features.shape(trial)
        what = trial.dataset if features.raw else f"features '{trial.features}'"
        refuse(len(shape) != 3, "network", f"convolutions take images (channels, rows, columns), and records of {what} "
               f"have the shape {shape}", "'convnet'", "use 'mlp'")
        super().check(trial)
        refuse(self.kernel % 2 == 0, "kernel", "must be odd, so that padding keeps the size of an image", self.kernel)
        refuse(not all(layer.n_out for layer in trial.layers), "channels", "every convolution halves rows and columns, "
               f"and images have {shape[1]} rows", f"{len(self.channels)} convolutions, which leave none")


class Own(Part):
    """A user's network. What a record contributes is computed from this record alone (`pipeline.learning.own`)."""

    convolutional, own = False, True
    build: ClassVar[Callable[..., Any]]  # the user's function
    not_integer = "what a module computes is in floating point; noise 'secure' sums its contributions as integers"

    network_version: int = setting(0, "version of a user's network; by default that which is loaded", low=0)
    input_norm: float = again("input_norm")
    records_at_once: int = setting(
        128, "records whose contributions a user's network computes at a time; memory grows with it", low=1, high=4096)
    shared_blocks: int = setting(
        1, "blocks of a user's network, from the lowest, that back-propagate from the block above them", low=1,
        needs=[chosen("algorithm", "hybrid")])

    @property
    def lower_layers(self) -> int:
        return self.shared_blocks

    def layers(self, shape: tuple[int, ...], n_classes: int) -> tuple[LayerShape, ...]:
        """Return the shapes of the module's blocks for features of this shape; the module is built for it."""
        raise NotImplementedError

    def why_alone(self, trial: Trial) -> str:
        """Refuse a network that cannot be trained; return why its records are computed alone, empty if they are not."""
        raise NotImplementedError

    def check(self, trial: Trial) -> None:
        """Refuse parts of the trial that cannot train a user's module, and a module with too few blocks for them."""
        feedback, mechanism, network = trial.parts.feedback, trial.parts.mechanism, f"network '{self.name}'"
        refuse(not feedback.described and not feedback.convolutional, "algorithm", f"trains {network} as 'bp', 'dfa', "
               "'tdfa', 'pdfa' or 'hybrid'", f"'{trial.algorithm}'")
        refuse(mechanism.private and not mechanism.flat, "mechanism", "must be 'none' or "
               f"{listed_or(names_with('mechanism', 'flat'))} with {network}; others bound layers of this package, and "
               "nothing is described of blocks", f"'{mechanism.name}'")
        refuse(trial.denoise, "denoise", "needs the columns of a layer's weights, which a block has not",
               f"true with {network}", "use false")
        refuse(trial.parts.arithmetic.factors != "float32", "arithmetic", f"must be 'float32' with {network}",
               f"'{trial.arithmetic}'")
        n_blocks = len(self.layers(trial.parts.features.shape(trial), trial.parts.data.spec.n_classes))
        refuse(not feedback.exact and n_blocks < 2, "network", "must have a block below its output block, to which an "
               "error is projected", f"{n_blocks} in '{self.name}' with algorithm '{trial.algorithm}'", "use 'bp'")
        refuse(feedback.convolutional and self.shared_blocks > n_blocks - 2, "shared_blocks", "must leave a block for "
               f"feedback and the output block, of {n_blocks} in all", self.shared_blocks)

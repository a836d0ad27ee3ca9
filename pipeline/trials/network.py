"""Networks: fully connected layers, with or without convolutions before them; `own_network` has those of users."""

from __future__ import annotations

import math
from typing import ClassVar

from pipeline.trials.condition import Trial, chosen
from pipeline.trials.fields import ConfigError, refuse
from pipeline.trials.part import Part, part, setting
from pipeline.trials.shapes import LayerShape, conv_shapes, dense_shapes

ACTIVATION_SLOPES = {"tanh": 1.0, "sigmoid": 0.25, "relu": 1.0}  # gamma: the supremum of phi'; the infimum is 0
ACTIVATION_SUPREMA = {"tanh": 1.0, "sigmoid": 1.0, "relu": math.inf}  # of |phi|
ACTIVATIONS = tuple(ACTIVATION_SLOPES)


class Network(Part):
    """Settings of all networks."""

    convolutional: ClassVar[bool] = False  # whether layers share weights over positions
    own: ClassVar[bool] = False  # whether it is a user's module
    version: ClassVar[int] = 0  # of its results, of a user's module
    runs: ClassVar[str] = ""  # `module:attribute` of the `pipeline.learning.run.Run` that trains it; by arithmetic
    hidden: tuple[int, ...] = setting((512, 512), "widths of the hidden fully connected layers")
    activation: str = setting("tanh", "activation phi of the hidden fully connected layers", choices=ACTIVATIONS)
    input_norm: float = setting(
        0.0, "Euclidean norm to which every record's input is scaled; 0 leaves it as it is", low=0, elide=True)
    init: str = setting(
        "uniform", "layers at the start: weights and biases `uniform` on +-1/sqrt(inputs of a unit), or weights "
        "uniform on +-sqrt(6/(fan_in + fan_out)) and biases 0 (`glorot`; Glorot and Bengio 2010)",
        choices=("uniform", "glorot"), elide=True)
    init_gain: float = setting(
        1.0, "factor on the weights and biases with which layers start", low=0, open_low=True, elide=True)
    output_init: str = setting(
        "uniform", "output layer at the start: as `init` says of all layers (`uniform`); at `zero`; or a multiple of "
        "the last hidden layer's B (`feedback`), with which feedback is aligned from the start",
        choices=("uniform", "zero", "feedback"), elide=True)
    output_std: float = setting(
        0.2, "standard deviation of the entries of an output layer that starts as a multiple of B", low=0,
        open_low=True, needs=[chosen("output_init", "feedback")])

    @property
    def lower_layers(self) -> int:
        """Return how many of the lowest layers back-propagate with algorithm `hybrid`."""
        return 0

    def convolutions(self, shape: tuple[int, ...]) -> tuple[LayerShape, ...]:
        """Return the shapes of the convolutions for records of this shape."""
        return ()

    def layers(self, shape: tuple[int, ...], n_classes: int) -> tuple[LayerShape, ...]:
        """Return the shapes of layers 1..L, convolutions first."""
        below = self.convolutions(shape)
        n_in = below[-1].n_out if below else math.prod(shape)
        return (*below, *dense_shapes((n_in, *self.hidden, n_classes)))

    def check(self, trial: Trial) -> None:
        """Refuse feedback without hidden layers, and an initialisation that needs a matrix B unless B is known."""
        refuse(not self.hidden and self.convolutional, "hidden", "must be at least one layer with network 'convnet', "
               "whose convolutions end in fully connected layers", "[]")
        if not self.hidden and not trial.parts.feedback.exact:
            raise ConfigError("hidden", "without hidden layers there is nothing to project an error to, and all "
                              "algorithms are the softmax regression that 'bp' with network 'mlp' trains",
                              f"[] with algorithm '{trial.algorithm}' and network '{trial.network}'")
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
        return len(self.channels)

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
        if not all(layer.n_out for layer in trial.layers):
            raise ConfigError(f"channels: every convolution halves rows and columns, and images have {shape[1]} rows; "
                              f"got {len(self.channels)} convolutions, which leave none")

"""Feedback paths: turn the output error into a learning signal for every layer.

There are two steps, so that optical noise can enter between projection and derivative:

    signals(e)                 the feedback signals: BP gives the error itself; DFA gives one projection B^l e per
                               hidden layer, and the error for the output layer
    deltas(signals, ...)       delta^l: DFA multiplies by phi'(z^l), BP goes back through the transposed weights

R trials with m records each; layer l maps h^{l-1} [R, m, n_{l-1}] to z^l [R, m, n_l], h^l = phi(z^l), and delta^l
[R, m, n_l] is the learning signal at z^l.
If DFA serves only the upper layers, the lower ones use BP: the hybrid of Lee & Kifer 2020, section 4.2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field
from typing import Any

import torch

from pipeline.learning.feedback.projection import ErrorProjector, make_projector, shape_matrices
from pipeline.learning.network.stacked import StackedNetwork
from pipeline.trials import feedback
from pipeline.trials.fields import ConfigError
from pipeline.trials.packs import Pack
from pipeline.trials.part import PARTS, Workers, extension

Derivative = Callable[[torch.Tensor, int], torch.Tensor]  # (h^l, l) -> phi'(z^l)


def ternarize(error: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:  # [R, m, n_L]; t [R, 1, 1]
    """Return +1 above the threshold, -1 below its negative, else 0 (Ohana et al., section 4)."""
    return (error > threshold).to(error.dtype) - (error < -threshold).to(error.dtype)


def back_propagate(deltas: list[torch.Tensor],  # of the top layers, in order
                   net: StackedNetwork, activations: list[torch.Tensor],  # h^0, ..., h^{L-1}
                   derivative: Derivative) -> list[torch.Tensor]:
    """Return delta^1, ..., delta^L from the deltas of the top layers: delta^l = (W^{l+1}^T delta^{l+1}) * phi'(z^l)."""
    from_top = deltas[::-1]
    for layer in range(len(net.layers) - len(deltas), 0, -1):
        # Layers count from 1, list indices from 0: `net.layers[layer]` is the layer above.
        signal = net.layers[layer].back(from_top[-1], net.parameters.weights[layer])
        from_top.append(signal.mul_(derivative(activations[layer], layer)))
    return from_top[::-1]


class FeedbackPath(ABC):
    """A feedback path of one pack. Its matrices come from the trials' streams, and no step changes its state.

    Attributes:
        matrices: feedback matrices B [R, n_L, n_1 + ... + n_{L-1}] for a mechanism that needs them; None if there are
            none, or if they are not known.
    """

    matrices: torch.Tensor | None = None

    @abstractmethod
    def signals(self, error: torch.Tensor) -> list[torch.Tensor]:
        """Return the feedback signals of the output error [R, m, n_L]: tensors [R, m, n], the output layer's last."""

    @abstractmethod
    def deltas(self, signals: list[torch.Tensor], net: StackedNetwork, activations: list[torch.Tensor],
               derivative: Derivative) -> list[torch.Tensor]:
        """Return delta^1, ..., delta^L, each [R, m, n_l]: the learning signals at the layers' pre-activations z^l.

        Layer l maps the n_{l-1} numbers h^{l-1} of a record to n_l numbers z^l, and h^l = phi(z^l). There are R trials
        with m records each.

        Args:
            signals: feedback signals [R, m, n] as the method `signals` returns them, after the mechanism's noise.
            net: the networks.
            activations: h^0, ..., h^{L-1}, each [R, m, n_{l-1}].
            derivative: (h^l, l) -> phi'(z^l).
        """

    def close(self) -> None:  # noqa: B027  (most hold nothing that needs closing)
        """Release resources; may be called more than once."""


class BackPropagationPath(FeedbackPath):
    """delta^l = (W^{l+1}^T delta^{l+1}) * phi'(z^l), delta^L = e (Eq. 3)."""

    def signals(self, error: torch.Tensor) -> list[torch.Tensor]:
        return [error]

    def deltas(self, signals: list[torch.Tensor], net: StackedNetwork, activations: list[torch.Tensor],
               derivative: Derivative) -> list[torch.Tensor]:
        return back_propagate(signals, net, activations, derivative)


class DirectFeedback(FeedbackPath):
    """delta^l = (B^{l+1} e) * phi'(z^l), delta^L = e (Eq. 4).

    The projector gives B e for all hidden layers of these `widths` together; lower layers use back-propagation. With a
    `threshold` t [R, 1, 1] it projects the ternarized error (TDFA and PDFA); the output layer always learns from e.
    """

    def __init__(self, projector: ErrorProjector, widths: tuple[int, ...],
                 threshold: torch.Tensor | None = None) -> None:
        self.projector, self.widths, self.threshold = projector, widths, threshold
        self.matrices = projector.matrices

    def signals(self, error: torch.Tensor) -> list[torch.Tensor]:
        """Return B^{l+1} e, ..., B^L e, e: [R, m, n_l] per layer; all except the last are views of one projection."""
        to_project = error if self.threshold is None else ternarize(error, self.threshold)
        projections = self.projector.project(to_project).split(self.widths, dim=-1)
        return [*projections, error]

    def deltas(self, signals: list[torch.Tensor], net: StackedNetwork, activations: list[torch.Tensor],
               derivative: Derivative) -> list[torch.Tensor]:
        first = len(net.layers) - len(self.widths)  # number of the lowest layer with a projected error, from 1
        hidden = [derivative(activations[k], k).mul_(signal) for k, signal in enumerate(signals[:-1], start=first)]
        return back_propagate([*hidden, signals[-1]], net, activations, derivative)

    def close(self) -> None:
        self.projector.close()


FeedbackFactory = Callable[[Pack, StackedNetwork, torch.device], FeedbackPath]
FEEDBACK: Workers[FeedbackFactory] = Workers()


@FEEDBACK.of(feedback.Direct)
def direct_feedback(pack: Pack, net: StackedNetwork, device: torch.device) -> DirectFeedback:
    """Make DFA with each trial's own matrix B."""
    shared = pack.shared
    lower = shared.parts.network.lower_layers if shared.parts.feedback.convolutional else 0  # they back-propagate
    widths = net.sizes[1 + lower:-1]
    projector = make_projector(pack.trials, sum(widths), device)
    shape_matrices(projector, shared, widths)
    norm = shared.parts.mechanism.feedback_norm
    if norm and not shared.exact:  # `IntegerArithmetic` normalises bit-exactly
        projector.normalize(widths, norm)
    threshold = None
    if shared.parts.feedback.ternary:
        threshold = torch.tensor([t.threshold for t in pack.trials], device=device).view(-1, 1, 1)
    return DirectFeedback(projector, widths, threshold)


@FEEDBACK.of(feedback.BackPropagation)
def back_propagation(pack: Pack, net: StackedNetwork, device: torch.device) -> BackPropagationPath:
    """Make back-propagation, which has no state."""
    return BackPropagationPath()


def register_feedback(name: str, factory: FeedbackFactory, *, projectors: Sequence[str] = ("none",),
                      settings: Sequence[str] | Mapping[str, Field[Any] | None] = (), per_record: str = "",
                      label: str = "") -> None:
    """Add a feedback path: `algorithm: <name>` is accepted after this call (docs/extending.md).

    Args:
        name: value of the setting `algorithm`.
        factory: makes the `FeedbackPath` of a pack from the pack, its networks and the device.
        projectors: the accepted projectors, the default first.
        settings: fields that it uses, such as `threshold`; they become part of its trials' identity. New fields are
            given by name, `{"sparsity": setting(0.5, "share of B that is 0", low=0, high=1), "threshold": None}`. They
            become attributes of a trial, validated and swept like all others.
        per_record: the reason why a record's deltas depend on no other record of the batch. Certified mechanisms
            require it, and the tag `privacy.notes` then has this sentence. Without it no certified mechanism is
            accepted.
        label: name in tables and figures; by default `name`.

    Raises:
        ConfigError: if `name` or the name of a new setting is in use, or a projector or field is unknown.
    """
    if not projectors or not set(projectors) <= set(PARTS["projector"]):
        raise ConfigError(f"projectors: must be some of {', '.join(PARTS['projector'])}, got "
                          f"{', '.join(projectors) or 'none'}")
    path = extension("algorithm", name, feedback.Feedback, settings, factory, projectors=tuple(projectors),
                     per_record=per_record or None, label=label)
    FEEDBACK.of(path)(factory)

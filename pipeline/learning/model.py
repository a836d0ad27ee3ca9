"""A trained network as a `torch.nn.Module` that maps records to the trial's logits."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from pipeline.learning import integer_arithmetic as integer_arithmetic  # enters itself
from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.inputs import Inputs
from pipeline.learning.data.maps.computed import compute, normalised
from pipeline.learning.evaluation import EVALUATION_BATCH, Net
from pipeline.learning.own.building import initial_module
from pipeline.learning.own.net import OwnNet
from pipeline.learning.training import ARITHMETICS, FloatingPoint
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.fields import refuse
from pipeline.trials.packs import Pack

RECORDS = torch.export.Dim("n", min=1)  # a program's number of records


class TrainedModel(torch.nn.Module):
    """The network of one trial with its input scaling and its feature map.

    `model(records)` takes records as `load_dataset` returns them, uint8 [n, n_features] or [n, *shape of a record].
    With `features: file` it takes rows of the feature file, floating point [n, d]. It returns logits [n, n_classes].
    On the test set, in its order, they are the logits of the trial's evaluation.

    Parameters are named as in `weights.safetensors` (`layer_1.weight` [n_out, n_in], `layer_1.bias` [n_out]). No
    gradient is available: activations overwrite their inputs. Every call sets up the feature map again, which takes
    seconds: pass many records at once. `config` is the trial.
    """

    def __init__(self, config: TrialConfig, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self.config = config
        self._network = _arithmetic(config, torch.device("cpu")).network()
        expected = {}
        for number, shape in enumerate(config.layers, start=1):
            expected[f"layer_{number}.weight"] = tuple(shape.weight_shape)
            expected[f"layer_{number}.bias"] = tuple(shape.weight_shape[:1])
        _check_shapes(weights, expected)
        for number in range(1, len(config.layers) + 1):
            layer = torch.nn.Module()
            for part in ("weight", "bias"):
                array = torch.from_numpy(np.array(weights[f"layer_{number}.{part}"]))
                layer.register_parameter(part, torch.nn.Parameter(array, requires_grad=False))
            self.add_module(f"layer_{number}", layer)

    @torch.no_grad()
    def forward(self, records: torch.Tensor) -> torch.Tensor:
        """Return the logits [n, n_classes] of records; nan for a record with features that are not finite."""
        inputs, places = self._inputs(records), torch.arange(len(records), device=records.device)
        net = self._current_network(records.device)
        logits = torch.cat([net.forward(inputs.batch(chunk[None]))[1][0] for chunk in places.split(EVALUATION_BATCH)])
        if inputs.usable is not None:
            logits[~inputs.usable] = torch.nan
        return logits

    def _current_network(self, device: torch.device) -> Net:
        """Return the network on a device, with the module's present weights."""
        if self._network.parameters.flat.device != device:
            self._network = _arithmetic(self.config, device).network()
        net = self._network
        # The module's weights may have changed since the last call: copy them into a network of one trial.
        net.parameters = net.blank_parameters(1, device)
        blocks = zip(net.parameters.weights, net.parameters.biases, strict=True)
        for number, (weight, bias) in enumerate(blocks, start=1):
            layer = self.get_submodule(f"layer_{number}")
            weight[0].copy_(layer.get_parameter("weight").flatten(1))
            bias[0].copy_(layer.get_parameter("bias"))
        return net

    def program(self) -> torch.export.ExportedProgram:
        """Return the network as a program of torch alone, from any number of records to logits, on the CPU.

        It takes pixels, uint8 [n, n_features], or rows of the feature file, float32 [n, d]. It holds no other map of
        records: with other features it takes these, float32 [n, n_0]. What `torch.export` raises says which operation
        of a user's network has no form in such a program.
        """
        n_0 = math.prod(self.config.parts.features.shape(self.config))
        records = torch.zeros(2, n_0, dtype=torch.uint8 if self.config.parts.features.raw else torch.float32)
        with torch.no_grad():
            network = _Program(self, records)
            program = torch.export.export(network, (records,), dynamic_shapes=({0: RECORDS},))
            generator = torch.Generator().manual_seed(0)
            made_up = torch.randint(0, 2, (4, n_0), generator=generator).to(records.dtype)
            logits, expected = program.module()(made_up), network(made_up)
        if not torch.allclose(logits, expected, rtol=1e-3, atol=1e-4, equal_nan=True):
            raise ConfigError("program", "must give the network's logits", "others by "
                              f"{(logits - expected).abs().max():.2g}", "no record may depend on another in forward")
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # it names folders of this machine
        for name, tensor in program.constants.items():  # weights are views of one tensor, which files cannot share
            program.constants[name] = tensor.clone(memory_format=torch.contiguous_format)
        return program

    def _inputs(self, records: torch.Tensor) -> Inputs:
        """Return the network's inputs of raw records [n, ...], checked, after the trial's feature map and scaling."""
        refuse(not isinstance(records, torch.Tensor) or records.dim() < 2, "records", "must be a tensor [n, ...] "
               "of n records, as `load_dataset` and `table_records` return", f"a {type(records).__name__}")
        config, spec, flat = self.config, self.config.parts.data.spec, records.flatten(1)
        if config.parts.features.of_file:
            width, dtype, is_right_type = config.feature_width, "floating point", records.is_floating_point()
        else:
            width, dtype, is_right_type = spec.n_features, "uint8", records.dtype == torch.uint8
        refuse(not len(records) or flat.shape[1] != width or not is_right_type, "records", f"must be {dtype} [n, "
               f"{width}], n >= 1, for {config.features} of {config.dataset}", f"{records.dtype} {list(records.shape)}")
        no_labels = torch.zeros(len(flat), dtype=torch.int64, device=flat.device)
        data = Dataset(spec, flat, no_labels, flat, no_labels)
        if not config.parts.features.raw:
            (flat,) = compute([flat], data, config)
        return _arithmetic(config, flat.device).inputs(flat, config, data)


class _Program(torch.nn.Module):
    """What `TrainedModel.program` exports: the network after the input scaling, on the CPU."""

    def __init__(self, model: TrainedModel, records: torch.Tensor) -> None:  # an example: pixels or features [n, n_0]
        super().__init__()
        self._config, device = model.config, torch.device("cpu")
        no_labels = torch.zeros(len(records), dtype=torch.int64)
        data = Dataset(self._config.parts.data.spec, records, no_labels, records, no_labels)
        self._scaling = _arithmetic(self._config, device).inputs(records, self._config, data)
        self._network = model._current_network(device)

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        settings = self._config.parts.features
        if settings.of_file:
            records = normalised(records, self._config)
        x = self._scaling.of(records if settings.raw else records.to(torch.bfloat16))  # as `features.compute` rounds
        return self._network.forward(x)[1][0]


class TrainedModule(TrainedModel):
    """The same of a user's network: `network` is the user's module with its trained weights."""

    def __init__(self, config: TrialConfig, weights: Mapping[str, np.ndarray]) -> None:
        torch.nn.Module.__init__(self)
        self.config, self.network = config, initial_module(config)
        parameters = dict(self.network.named_parameters())
        _check_shapes(weights, {name: tuple(value.shape) for name, value in parameters.items()})
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(torch.from_numpy(np.array(weights[name])))

    def _current_network(self, device: torch.device) -> Net:
        return OwnNet(self.config, self.network)


def model_of(config: TrialConfig, weights: Mapping[str, np.ndarray]) -> TrainedModel:
    """Return the network of a trial with these weights."""
    return (TrainedModule if config.parts.network.own else TrainedModel)(config, weights)


def _check_shapes(weights: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]]) -> None:
    shapes = {name: tuple(array.shape) for name, array in weights.items()}
    wrong = [name for name in {**expected, **shapes} if shapes.get(name) != expected.get(name)]
    if wrong:
        name = wrong[0]
        raise ConfigError("weights", "must have the shapes of the network as it is now, "
                          f"{expected.get(name)} for {name}",
                          f"{shapes.get(name)}, and {len(wrong) - 1} more that differ", "was its code changed since?")


def _arithmetic(config: TrialConfig, device: torch.device) -> FloatingPoint:
    return ARITHMETICS[config.parts.arithmetic](Pack((config,)), device)

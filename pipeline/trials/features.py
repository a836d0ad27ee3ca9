"""What a network takes in: pixels, or a public map of each record, what shape that has and why it is public (no
torch). What computes the maps is in `pipeline.learning.data.maps`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipeline.trials.condition import Need, chosen, not_chosen, positive
from pipeline.trials.feature_file import check_feature_file, file_settings
from pipeline.trials.feature_part import Features as Features
from pipeline.trials.fields import ConfigError
from pipeline.trials.part import again, part, setting

if TYPE_CHECKING:
    from pipeline.trials.config import TrialConfig

CROPPED = 2  # rows and columns of scattering coefficients that stand for the padding, and are left out
MAX_FEATURES = 100_000  # of a record: 14 GB of 70,000
ENCODER_CHANNELS = 288  # of the two layers whose activations are features
BESIDE: dict[str, tuple[str, ...]] = {  # value of `patch_beside` -> the maps beside patches
    "none": (), "encoder": ("encoder",), "scattering": ("scattering",),
    "encoder_and_scattering": ("encoder", "scattering")}
OF_ONE_RECORD = "a map of each record alone that no private record had a part in, which costs nothing"


def padded_size(size: int, scales: int) -> int:
    """Return the rows (columns) of an image after padding for scattering of J = `scales` scales: a multiple of 2^J."""
    step = 2**scales
    return ((size + step) // step + 1) * step


def coefficients(scales: int, angles: int) -> int:
    """Return the scattering channels of one colour up to the second order: 1 + J L + L^2 J (J - 1)/2.

    J is `scales` and L is `angles`, the orientations of the wavelets.
    """
    return 1 + scales * angles + angles**2 * scales * (scales - 1) // 2


@part("features", "pixels")
class Pixels(Features):
    """The records themselves."""

    raw = True
    inputs: str = setting(
        "centered", "pixels on [0, 1] (`unit`), on [-1, 1] (`centered`), or shifted and scaled by published constants",
        choices=("centered", "standardized", "unit"))

    def shape(self, trial: TrialConfig) -> tuple[int, ...]:
        """Return the shape of a record."""
        return trial.parts.data.spec.shape

    def scale(self, trial: TrialConfig) -> float:
        """Return the largest absolute value of a pixel on [0, 1] after it was shifted and scaled as `inputs` says."""
        if self.inputs != "standardized":
            return 1.0
        spec = trial.parts.data.spec
        # (x - mean)/std is largest in size at x = 0 or x = 1
        return max(max(mean, 1 - mean) / std for mean, std in zip(spec.mean, spec.std, strict=True))

    def public_because(self, trial: TrialConfig) -> str:
        """Return what these features are, for `privacy.notes`: the records, which no map has changed."""
        return "the records themselves"


class SquareImages(Features):
    """A map of square images."""

    def size(self, trial: TrialConfig) -> int:
        """Return the rows (equal to the columns) of the images.

        Raises:
            ConfigError: for a data set without square images.
        """
        shape = trial.parts.data.spec.shape
        if len(shape) != 3 or shape[1] != shape[2]:
            raise ConfigError(f"features: {self.name} takes square images, which {trial.dataset} has not, got "
                              f"'{self.name}'; use 'pixels'")
        return shape[1]

    def check_encoder_size(self, trial: TrialConfig, name: str, pools: int) -> None:
        """Refuse a data set or a number of pools that the encoder (convolutions for images) cannot take.

        Args:
            name: name of the setting for the pools, for messages.
            pools: averages in a row (column) of a channel.

        Raises:
            ConfigError: for images without one or three colours, or for more pools than positions to average. The third
                layer has a quarter of the image's rows.
        """
        colours = trial.parts.data.spec.shape[0]
        if colours not in (1, 3):
            raise ConfigError(f"dataset: an encoder takes images of 1 or 3 colours, and {trial.dataset} has {colours}, "
                              f"got '{trial.dataset}'; use 'patches' alone")
        positions = self.size(trial) // 4
        if pools > positions:
            raise ConfigError(f"{name}: must be at most the {positions} places in a row of the encoder's third layer "
                              f"for images of {trial.dataset}, got {pools}")


@part("features", "scattering")
class Scattering(SquareImages):
    """Scattering coefficients (Tramer & Boneh 2021, section 3.1)."""

    groups = 27
    works = "pipeline.learning.data.maps:SCATTERING"
    scattering_scales: int = setting(2, "J: scattering averages over 2^J x 2^J pixels", low=1, high=5)
    scattering_angles: int = setting(8, "L: orientations of the wavelets", low=1)
    feature_groups: int = setting(
        -1, "channels (of flat features, components) of a record's features are normalised in so many groups, each to "
        "mean 0 and variance 1; 0 leaves them; -1 takes 27 for scattering (1 with a reference), 1 for patches "
        "and optical, 0 for file", low=-1)
    feature_reference: str = setting(
        "none", "images over which every channel of the scattering coefficients has mean 0 and variance 1 before it "
        "is normalised in groups: none, or synthetic ones (dead leaves; Lee, Mumford and Huang 2001)",
        choices=("none", "dead_leaves"), elide=True)
    feature_mirrored: bool = setting(
        False, "features are the mean of those of an image and of the same with left and right exchanged", elide=True)
    feature_power: float = setting(
        1.0, "p: a value x of the map becomes sign(x) |x|^p before all else is done to it; 0.5 is the square root "
        "(Perronnin, Sanchez and Mensink 2010)", low=0, open_low=True, high=4, elide=True)
    feature_decorrelation: float = setting(
        0.0, "a: channels x, once standardised over synthetic images, become (S + 0.1)^(-a/2) x, S their covariance "
        "there, over its mean variance; 0 leaves them, 1 whitens", low=0, high=1, elide=True)

    def shape(self, trial: TrialConfig) -> tuple[int, ...]:
        """Return (channels of all colours, rows, columns) of the scattering coefficients, without the padding."""
        colours, *sizes = trial.parts.data.spec.shape
        scales = self.scattering_scales
        rows, columns = (padded_size(size, scales) // 2**scales - CROPPED for size in sizes)
        return colours * coefficients(scales, self.scattering_angles), rows, columns

    def public_because(self, trial: TrialConfig) -> str:
        """Return why these features need no privacy budget: the wavelets are fixed."""
        return f"scattering coefficients{self.treatment}, {OF_ONE_RECORD}"

    def check_size(self, trial: TrialConfig) -> None:
        """Refuse a number of scales J for which images are too small.

        Scattering averages over 2^J pixels. It pads an image on both sides by reflection, with fewer pixels than the
        image has.
        """
        size, scales = self.size(trial), self.scattering_scales
        padding = padded_size(size, scales) - size
        padding_of_larger_side = (padding + 1) // 2
        if 2**scales > size or padding_of_larger_side >= size:
            raise ConfigError(f"scattering_scales: averages over 2^J pixels, of which images of {trial.dataset} have "
                              f"{size} in a row, got {scales}")


def _beside(name: str) -> Need:
    """Return the condition that the map `name` stands beside patches."""
    return chosen("patch_beside", *(choice for choice, maps in BESIDE.items() if name in maps))


@part("features", "patches")
class Patches(SquareImages):
    """Responses to patches of synthetic images (Coates & Ng 2011)."""

    groups = 1
    standardised = True
    works = "pipeline.learning.data.maps:PATCHES"
    patch_filters: int = setting(
        64, "filters, each a patch of a synthetic image (dead leaves), which give two channels each (Coates and Ng "
        "2011)", low=1, high=10_000)
    patch_size: int = setting(5, "rows and columns of a patch", low=2, high=16)
    patch_threshold: float = setting(
        1.0, "a: channels are averages of max(0, z - a) and max(0, -z - a), z a whitened patch times a filter", low=0)
    patch_pools: int = setting(6, "rows and columns of averages that a channel has", low=1)
    patch_beside: str = setting(
        "none", "what stands beside the channels of patches: nothing, those of `features: encoder`, averaged over as "
        "many pools, those of `features: scattering`, or both of them", choices=tuple(BESIDE), elide=True)
    beside_weight: float = setting(
        0.0, "w: with w > 0 features beside patches are computed apart, and those of each map have w times the norm "
        "of those of patches; 0 treats the channels of patches and encoder alike", low=0, high=100, elide=True,
        needs=[not_chosen("patch_beside", "none")])
    encoder_pools: int = setting(3, "rows and columns of averages that a channel of the encoder has", low=1,
                                 needs=[_beside("encoder"), positive("beside_weight")])
    scattering_scales: int = again("scattering_scales", _beside("scattering"))
    scattering_angles: int = again("scattering_angles", _beside("scattering"))
    feature_groups: int = again("feature_groups")
    feature_mirrored: bool = again("feature_mirrored", elide=True)
    feature_power: float = again("feature_power", elide=True)
    feature_decorrelation: float = again("feature_decorrelation", elide=True)

    @property
    def apart(self) -> bool:
        """Whether features beside those of patches are computed apart, and weighted."""
        return self.patch_beside != "none" and self.beside_weight > 0

    def shape(self, trial: TrialConfig) -> tuple[int, ...]:
        """Return (two channels of each filter and those of the encoder, rows of pools, columns of pools).

        If they are computed apart, the shape is flat, because they may have different pools.
        """
        if self.apart:
            return (sum(math.prod(block.parts.features.shape(block)) for _, block in self.blocks(trial)),)
        encoder_channels = ENCODER_CHANNELS if self.patch_beside == "encoder" else 0
        return 2 * self.patch_filters + encoder_channels, self.patch_pools, self.patch_pools

    def blocks(self, trial: TrialConfig) -> list[tuple[float, TrialConfig]]:
        """Return the map to patches and those beside it with their weights, if they are computed apart."""
        if not self.apart:
            return []
        alone: dict[str, Any] = {"patch_beside": "none", "beside_weight": 0.0}
        blocks = [(1.0, dataclasses.replace(trial, **alone))]
        for name in BESIDE[self.patch_beside]:
            beside = {**alone, "features": name}
            if name == "scattering":
                beside["feature_reference"] = "dead_leaves"  # as for patches and encoder
            blocks.append((self.beside_weight, dataclasses.replace(trial, **beside)))
        return blocks

    def public_because(self, trial: TrialConfig) -> str:
        """Return why these features need no privacy budget: the filters come from synthetic images."""
        maps = {"encoder": "activations of convolutions trained to tell synthetic objects apart",
                "scattering": "scattering coefficients"}
        names = BESIDE[self.patch_beside]
        text = "".join(f", beside {maps[name]}" for name in names)
        if self.apart:
            text += f", {'each ' * (len(names) > 1)}of {self.beside_weight:g} times the norm"
        return (f"responses{self.treatment} to patches of synthetic images of dead leaves, whitened and standardised "
                f"over these{self.decorrelating}{text}, {OF_ONE_RECORD}")

    def check_size(self, trial: TrialConfig) -> None:
        """Refuse patches or pools that do not fit an image, and more features than `MAX_FEATURES`."""
        size = self.size(trial)
        if self.patch_size > size:
            raise ConfigError(f"patch_size: must be at most the {size} rows of images of {trial.dataset}, got "
                              f"{self.patch_size}")
        positions = size - self.patch_size + 1
        if self.patch_pools > positions:
            raise ConfigError(f"patch_pools: must be at most the {positions} places in a row of patches of size "
                              f"{self.patch_size} in images of {trial.dataset}, got {self.patch_pools}; smaller "
                              "patches (patch_size) have more places")
        if self.apart and self.feature_groups != 1:
            raise ConfigError("beside_weight: takes features that are normalised in one group (feature_groups 1), got "
                              f"{self.beside_weight:g} with feature_groups {self.feature_groups}; use 1, or 0")
        if self.apart:
            self.blocks(trial)  # checks both maps
        elif "scattering" in BESIDE[self.patch_beside]:
            raise ConfigError("beside_weight: must be > 0 for scattering, which has pools of its own, got 0")
        elif self.patch_beside == "encoder":
            self.check_encoder_size(trial, "patch_pools", self.patch_pools)
        n_features = math.prod(self.shape(trial))
        if n_features > MAX_FEATURES:
            raise ConfigError(f"patch_filters: with {self.patch_pools} x {self.patch_pools} pools (patch_pools) must "
                              f"give at most {MAX_FEATURES:,} features of a record, got {self.patch_filters:,}, which "
                              f"give {n_features:,}")


@part("features", "encoder")
class Encoder(SquareImages):
    """Activations of convolutions that were trained to tell synthetic objects apart."""

    groups = 1
    standardised = True
    works = "pipeline.learning.data.maps:ENCODER"
    encoder_pools: int = again("encoder_pools")
    feature_groups: int = again("feature_groups")
    feature_mirrored: bool = again("feature_mirrored", elide=True)
    feature_power: float = again("feature_power", elide=True)
    feature_decorrelation: float = again("feature_decorrelation", elide=True)

    def shape(self, trial: TrialConfig) -> tuple[int, ...]:
        """Return (channels of two layers, rows of pools, columns of pools)."""
        return ENCODER_CHANNELS, self.encoder_pools, self.encoder_pools

    def public_because(self, trial: TrialConfig) -> str:
        """Return why these features need no privacy budget: the encoder was trained on synthetic images alone."""
        return (f"activations{self.treatment} of convolutions trained to tell synthetic objects apart, standardised "
                f"over synthetic images of dead leaves{self.decorrelating}, {OF_ONE_RECORD}")

    def check_size(self, trial: TrialConfig) -> None:
        """Refuse images or pools that do not fit the encoder."""
        self.check_encoder_size(trial, "encoder_pools", self.encoder_pools)


@part("features", "optical")
class Optical(Features):
    """Random features of an OPU, |R x|^2."""

    groups = 1
    works = "pipeline.learning.data.maps:OPTICAL"
    optical_device: str = setting(
        "simulated", "who computes |R x|^2: lightonml's simulated device, or an OPU, whose matrix is its own",
        choices=("simulated", "hardware"))
    optical_width: int = setting(
        4096, "intensities |R x|^2 of a record x, R complex Gaussian", low=1, high=MAX_FEATURES)
    optical_thresholds: int = setting(
        4, "an OPU takes bits: a pixel becomes so many, each whether it is above a threshold; these are at equal "
        "distances", low=1)
    feature_groups: int = again("feature_groups")
    optical_seed: int = setting(0, "seed of R, the same for trials of all seeds", low=0, high=2**32 - 1,
                                needs=[chosen("optical_device", "simulated")])

    @property
    def hardware(self) -> bool:
        """Whether a real device computes them."""
        return self.optical_device == "hardware"

    def shape(self, trial: TrialConfig) -> tuple[int, ...]:
        """Return the number of intensities |R x|^2."""
        return (self.optical_width,)

    def public_because(self, trial: TrialConfig) -> str:
        """Return why these features need no privacy budget: the matrix R is random, independent of the data."""
        note = (f"optical random features |R x|^2 of pixels compared with {self.optical_thresholds} thresholds, "
                f"{OF_ONE_RECORD}")
        if self.hardware:
            note += "; presupposes that the device maps every record without crosstalk from others"
        return note

    def check_size(self, trial: TrialConfig) -> None:
        """Refuse more thresholds than a pixel has gray levels above 0."""
        levels = trial.parts.data.spec.scale
        if self.optical_thresholds > levels:
            raise ConfigError(f"optical_thresholds: must be at most the {levels:g} steps of a pixel of "
                              f"{trial.dataset}, got {self.optical_thresholds}")


@part("features", "file")
class File(Features):
    """Features of a file, row by row those of one record."""

    of_file = True
    works = "pipeline.learning.data.maps:FILE"
    feature_file: str = setting(
        "", "safetensors file with the features of all records, one row each, in the data set's order: train [N, d] "
        "and test [M, d]; relative paths are from the experiment file", identity=False)
    feature_name: str = setting(
        "", "name that stands for that file in the tracking store, in place of its digest, which stays in the private "
        "folder; must be given where private_metrics is not plain", elide=True)
    feature_sha256: str = setting("", "digest of that file, which it must have; by default as found", elide=True)
    feature_width: int = setting(0, "d of that file; by default as found", low=0)
    feature_source: str = setting(
        "", "statement that the encoder of these features is public, and which it is, for privacy.notes")
    feature_groups: int = again("feature_groups")

    def shape(self, trial: TrialConfig) -> tuple[int, ...]:
        """Return d, the width of the file's rows."""
        return (self.feature_width,)

    def public_because(self, trial: TrialConfig) -> str:
        """Return why these features need no privacy budget: the user's statement `feature_source`, unchecked."""
        file = f"called {self.feature_name}" if self.feature_name else f"SHA-256 {self.feature_sha256}"
        return (f"features from a file ({file}), row by row those of one record, which costs nothing if their encoder "
                f"is public; whoever runs the trial states of it: {self.feature_source}")

    def check_size(self, trial: TrialConfig) -> None:
        """Refuse a file without a statement on its encoder, or without its digest."""
        check_feature_file(trial)

    def settled(self, trial: TrialConfig) -> dict[str, Any]:
        """Return the settings that follow from the file (path, digest, width), and those of the base class."""
        return {**file_settings(trial), **super().settled(trial)}


def stated(shape: Callable[[TrialConfig], tuple[int, ...]] | tuple[int, ...], public_because: str) -> type[Features]:
    """Return a subclass of `Features` that gives the shape and the statement of an extension.

    Args:
        shape: of one record's features, channels first; or a function from the trial to it.
        public_because: the extension's own sentence on why the features need no privacy budget.
    """
    class Stated(Features):
        def shape(self, trial: TrialConfig) -> tuple[int, ...]:
            return shape(trial) if callable(shape) else shape

        def public_because(self, trial: TrialConfig) -> str:
            return f"features '{self.name}'{self.treatment}, {OF_ONE_RECORD}, as the extension states: {public_because}"
    return Stated

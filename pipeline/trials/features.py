"""What a network takes in: pixels, or a public map of each record (no torch; `learning.data.maps` computes them)."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pipeline.trials.condition import Need, Trial, chosen, not_chosen, positive
from pipeline.trials.feature_file import file_of
from pipeline.trials.fields import ConfigError, refuse
from pipeline.trials.part import Part, again, declares, part, setting, uses

CROPPED = 2  # rows and columns of scattering coefficients that stand for the padding, and are left out
MAX_FEATURES = 100_000  # of a record: 14 GB of 70,000
ENCODER_CHANNELS = 288  # of the two layers whose activations are features
TRAINED_CONVOLUTIONS = "convolutions trained to tell synthetic objects apart"
BESIDE: dict[str, tuple[str, ...]] = {  # value of `patch_beside` -> the maps beside patches
    "none": (), "encoder": ("encoder",), "scattering": ("scattering",),
    "encoder_and_scattering": ("encoder", "scattering")}
OF_ONE_RECORD = "a map of each record alone that no private record had a part in, which costs nothing"
FEATURE_SIZE = 8.0  # standard deviations of normalised features
MAX_SOURCE_LENGTH = 500  # characters; tags and params of every run repeat the statement
MAX_CORRELATED_CHANNELS = 4096  # channels that are decorrelated: some minutes of a core for their eigenvectors


class Features(Part):
    """What a record becomes before a network takes it in."""

    raw: ClassVar[bool] = False  # whether they are the records themselves
    of_file: ClassVar[bool] = False  # whether they are read from a file
    groups: ClassVar[int] = 0  # in which they are normalised where `feature_groups` does not say

    # Settings that only some maps have, at the values that leave the features as they are.
    feature_groups = 0
    feature_reference = "none"
    feature_mirrored = False
    feature_power = 1.0
    feature_decorrelation = 0.0

    def shape(self, trial: Trial) -> tuple[int, ...]:
        """Return the shape of one record's features, channels first."""
        raise NotImplementedError

    def public_because(self, trial: Trial) -> str:
        """Return what the features are and why they need no privacy budget; for `privacy.notes`."""
        raise NotImplementedError

    def scale(self, trial: Trial) -> float:
        """Return the size to which integer arithmetic clamps a feature; 0 if the features' size is unknown."""
        return FEATURE_SIZE if self.feature_groups or self.standardised else 0.0

    def check_size(self, trial: Trial) -> None:
        """Refuse settings or a data set for which the features cannot be computed."""

    def check(self, trial: Trial) -> None:
        """Refuse features that cannot be computed, and groups or decorrelation that do not fit their channels."""
        self.check_size(trial)
        shape, groups, degree = self.shape(trial), self.feature_groups, self.feature_decorrelation
        n_channels = shape[0]
        refuse(groups and n_channels % groups, "feature_groups", f"must divide the {n_channels} channels of the "
               "features", groups, "0 normalises nothing")
        refuse(groups and math.prod(shape) == groups, "feature_groups", "leaves groups of one value, which normalised "
               "are all 0", groups, "0 normalises nothing")
        refuse(degree and not self.standardised, "feature_decorrelation", "takes channels that are standardised over "
               "synthetic images", f"{degree:g} with feature_reference 'none'", "use 'dead_leaves', or 0")
        refuse(degree and n_channels > MAX_CORRELATED_CHANNELS and not self.blocks(trial), "feature_decorrelation",
               f"takes at most {MAX_CORRELATED_CHANNELS:,} channels", f"{degree:g} with {n_channels:,}",
               "take fewer channels, or 0")

    def blocks(self, trial: Trial) -> list[tuple[float, Any]]:
        """Return (norm of its features, trial with that map alone) of maps that stand side by side; [] for one map."""
        return []

    def settled(self, trial: Trial) -> dict[str, Any]:
        """Return the value of `feature_groups` that its default of -1 stands for."""
        return {"feature_groups": 1 if self.standardised else self.groups} if self.feature_groups < 0 else {}

    def key(self, trial: Trial) -> tuple[Any, ...]:
        """Return a key that differs for different features of the same records: name and values of settings in use."""
        in_use = [field.name for field in self.settings if field.metadata["identity"] and uses(self, field, trial)]
        return self.name, *((name, getattr(self, name)) for name in in_use)

    @property
    def standardised(self) -> bool:
        """Whether channels of the features are standardised over synthetic images."""
        return self.feature_reference != "none"

    @property
    def treatment(self) -> str:
        """Return a clause for notes on what follows a map: power, mirror image, standardisation; may be empty."""
        power = f" (to the power {self.feature_power:g})" if self.feature_power != 1 else ""
        mirror = " of a record and its mirror image" if self.feature_mirrored else ""
        if not self.standardised or not declares(self, "feature_reference"):
            return power + mirror
        return f"{power}{mirror}, standardised over synthetic images of dead leaves{self.decorrelating}"

    @property
    def decorrelating(self) -> str:
        """Return a clause on decorrelated channels, to stand after "synthetic images"; empty without decorrelation."""
        degree = self.feature_decorrelation
        return f", channels decorrelated over these to the degree {degree:g}" if degree else ""


def padded_size(size: int, scales: int) -> int:
    """Return the rows (columns) of an image after padding for scattering of J = `scales` scales: a multiple of 2^J."""
    multiple = 2**scales
    return ((size + multiple) // multiple + 1) * multiple


@part("features", "pixels")
class Pixels(Features):
    """The records themselves."""

    raw = True
    inputs: str = setting(
        "centered", "pixels on [0, 1] (`unit`), on [-1, 1] (`centered`), or shifted and scaled by published constants",
        choices=("centered", "standardized", "unit"))

    def shape(self, trial: Trial) -> tuple[int, ...]:
        return trial.parts.data.spec.shape

    def scale(self, trial: Trial) -> float:
        """Return the largest absolute value of a pixel on [0, 1] after it was shifted and scaled as `inputs` says."""
        if self.inputs != "standardized":
            return 1.0
        spec = trial.parts.data.spec
        # (x - mean)/std is largest in size at x = 0 or x = 1
        return max(max(mean, 1 - mean) / std for mean, std in zip(spec.mean, spec.std, strict=True))

    def public_because(self, trial: Trial) -> str:
        return "the records themselves"


class SquareImages(Features):
    """A map of square images."""

    def size(self, trial: Trial) -> int:
        """Return the rows (equal to the columns) of the images, and refuse a data set of others."""
        shape = trial.parts.data.spec.shape
        refuse(len(shape) != 3 or shape[1] != shape[2], "features", f"{self.name} takes square images, which "
               f"{trial.dataset} has not", f"'{self.name}'", "use 'pixels'")
        return shape[1]

    def check_encoder_size(self, trial: Trial, name: str, pools: int) -> None:
        """Refuse colours, or `pools` averages in a row (the setting `name`), that the encoder cannot take."""
        colours, data = trial.parts.data.spec.shape[0], trial.dataset
        refuse(colours not in (1, 3), "dataset", f"an encoder takes images of 1 or 3 colours, and {data} has {colours}",
               f"'{data}'", "use 'patches' alone")
        positions = self.size(trial) // 4  # the third layer has a quarter of the image's rows
        refuse(pools > positions, name, f"must be at most the {positions} places in a row of the encoder's third layer "
               f"for images of {data}", pools)


@part("features", "scattering")
class Scattering(SquareImages):
    """Scattering coefficients (Tramer & Boneh 2021, section 3.1)."""

    groups = 27
    scattering_scales: int = setting(2, "J: scattering averages over 2^J x 2^J pixels", low=1, high=5)
    scattering_angles: int = setting(8, "L: orientations of the wavelets", low=1)
    feature_groups: int = setting(
        -1, "channels (of flat features, components) of a record's features are normalised in so many groups, each to "
        "mean 0 and variance 1; 0 leaves them; -1 takes 27 for scattering (1 with a reference), 1 for patches "
        "and encoder, 0 for file", low=-1)
    feature_reference: str = setting(
        "none", "images over which every channel of the scattering coefficients has mean 0 and variance 1 before it "
        "is normalised in groups: none, or synthetic ones (dead leaves; Lee, Mumford and Huang 2001)",
        choices=("none", "dead_leaves"))
    feature_mirrored: bool = setting(
        False, "features are the mean of those of an image and of the same with left and right exchanged")
    feature_power: float = setting(
        1.0, "p: a value x of the map becomes sign(x) |x|^p before all else is done to it; 0.5 is the square root "
        "(Perronnin, Sanchez and Mensink 2010)", low=0, open_low=True, high=4)
    feature_decorrelation: float = setting(
        0.0, "a: channels x, once standardised over synthetic images, become (S + 0.1)^(-a/2) x, S their covariance "
        "there, over its mean variance; 0 leaves them, 1 whitens", low=0, high=1)

    def shape(self, trial: Trial) -> tuple[int, ...]:
        """Return (channels of all colours, rows, columns), without the padding."""
        colours, *sizes = trial.parts.data.spec.shape
        scales, angles = self.scattering_scales, self.scattering_angles
        coefficients = 1 + scales * angles + angles**2 * scales * (scales - 1) // 2  # of a colour, to the second order
        rows, columns = (padded_size(size, scales) // 2**scales - CROPPED for size in sizes)
        return colours * coefficients, rows, columns

    def public_because(self, trial: Trial) -> str:
        return f"scattering coefficients{self.treatment}, {OF_ONE_RECORD}"

    def check_size(self, trial: Trial) -> None:
        """Refuse a number of scales J for which images are too small."""
        size, scales = self.size(trial), self.scattering_scales
        padding = (padded_size(size, scales) - size + 1) // 2  # of a side, by reflection: fewer pixels than there are
        refuse(2**scales > size or padding >= size, "scattering_scales", "averages over 2^J pixels, of which images "
               f"of {trial.dataset} have {size} in a row", scales)


def _beside(name: str) -> Need:
    return chosen("patch_beside", *(choice for choice, maps in BESIDE.items() if name in maps))


@part("features", "patches")
class Patches(SquareImages):
    """Responses to patches of synthetic images (Coates & Ng 2011)."""

    groups = 1
    standardised = True
    patch_filters: int = setting(
        64, "filters, each a patch of a synthetic image (dead leaves), which give two channels each (Coates and Ng "
        "2011)", low=1, high=10_000)
    patch_size: int = setting(5, "rows and columns of a patch", low=2, high=16)
    patch_threshold: float = setting(
        1.0, "a: channels are averages of max(0, z - a) and max(0, -z - a), z a whitened patch times a filter", low=0)
    patch_pools: int = setting(6, "rows and columns of averages that a channel has", low=1)
    patch_beside: str = setting(
        "none", "what stands beside the channels of patches: nothing, those of `features: encoder`, averaged over as "
        "many pools, those of `features: scattering`, or both of them", choices=tuple(BESIDE))
    beside_weight: float = setting(
        0.0, "w: with w > 0 features beside patches are computed apart, and those of each map have w times the norm "
        "of those of patches; 0 treats the channels of patches and encoder alike", low=0, high=100,
        needs=[not_chosen("patch_beside", "none")])
    encoder_pools: int = setting(3, "rows and columns of averages that a channel of the encoder has", low=1,
                                 needs=[_beside("encoder"), positive("beside_weight")])
    scattering_scales: int = again("scattering_scales", _beside("scattering"))
    scattering_angles: int = again("scattering_angles", _beside("scattering"))
    feature_groups: int = again("feature_groups")
    feature_mirrored: bool = again("feature_mirrored")
    feature_power: float = again("feature_power")
    feature_decorrelation: float = again("feature_decorrelation")

    @property
    def apart(self) -> bool:
        """Whether features beside those of patches are computed apart, and weighted."""
        return self.patch_beside != "none" and self.beside_weight > 0

    def shape(self, trial: Trial) -> tuple[int, ...]:
        """Return (two channels of each filter and those of the encoder, rows of pools, columns of pools)."""
        if self.apart:  # with pools of their own, so that the shape is flat
            return (sum(math.prod(block.parts.features.shape(block)) for _, block in self.blocks(trial)),)
        encoder_channels = ENCODER_CHANNELS if self.patch_beside == "encoder" else 0
        return 2 * self.patch_filters + encoder_channels, self.patch_pools, self.patch_pools

    def blocks(self, trial: Trial) -> list[tuple[float, Any]]:
        """Return the map to patches, of norm 1, and those beside it, of norm `beside_weight`; [] unless `apart`."""
        if not self.apart:
            return []
        alone: Any = partial(dataclasses.replace, trial, patch_beside="none", beside_weight=0.0)
        blocks = [(1.0, alone())]
        for name in BESIDE[self.patch_beside]:
            # Patches and encoder are standardised over synthetic images always, scattering on demand.
            reference = {"feature_reference": "dead_leaves"} if name == "scattering" else {}
            blocks.append((self.beside_weight, alone(features=name, **reference)))
        return blocks

    def public_because(self, trial: Trial) -> str:
        maps = {"encoder": f"activations of {TRAINED_CONVOLUTIONS}", "scattering": "scattering coefficients"}
        names = BESIDE[self.patch_beside]
        text = "".join(f", beside {maps[name]}" for name in names)
        if self.apart:
            each = "each " if len(names) > 1 else ""
            text += f", {each}of {self.beside_weight:g} times the norm"
        return (f"responses{self.treatment} to patches of synthetic images of dead leaves, whitened and standardised "
                f"over these{self.decorrelating}{text}, {OF_ONE_RECORD}")

    def check_size(self, trial: Trial) -> None:
        """Refuse patches or pools that do not fit an image, and more features than `MAX_FEATURES`."""
        size, data, pools = self.size(trial), trial.dataset, self.patch_pools
        refuse(self.patch_size > size, "patch_size", f"must be at most the {size} rows of images of {data}",
               self.patch_size)
        positions = size - self.patch_size + 1
        refuse(pools > positions, "patch_pools", f"must be at most the {positions} places in a row of patches of size "
               f"{self.patch_size} in images of {data}", pools, "smaller patches (patch_size) have more places")
        refuse(self.apart and self.feature_groups != 1, "beside_weight", "takes features that are normalised in one "
               "group (feature_groups 1)", f"{self.beside_weight:g} with feature_groups {self.feature_groups}",
               "use 1, or 0")
        beside = BESIDE[self.patch_beside]
        if self.apart:
            self.blocks(trial)  # checks both maps
        elif beside:
            refuse("scattering" in beside, "beside_weight", "must be > 0 for scattering, which has pools of its own", 0)
            self.check_encoder_size(trial, "patch_pools", pools)
        n_features = math.prod(self.shape(trial))
        refuse(n_features > MAX_FEATURES, "patch_filters", f"with {pools} x {pools} pools (patch_pools) must give at "
               f"most {MAX_FEATURES:,} features of a record", f"{self.patch_filters:,}, which give {n_features:,}")


@part("features", "encoder")
class Encoder(SquareImages):
    """Activations of convolutions that were trained to tell synthetic objects apart."""

    groups = 1
    standardised = True
    encoder_pools: int = again("encoder_pools")
    feature_groups: int = again("feature_groups")
    feature_mirrored: bool = again("feature_mirrored")
    feature_power: float = again("feature_power")
    feature_decorrelation: float = again("feature_decorrelation")

    def shape(self, trial: Trial) -> tuple[int, ...]:
        return ENCODER_CHANNELS, self.encoder_pools, self.encoder_pools

    def public_because(self, trial: Trial) -> str:
        return (f"activations{self.treatment} of {TRAINED_CONVOLUTIONS}, standardised over synthetic images of dead "
                f"leaves{self.decorrelating}, {OF_ONE_RECORD}")

    def check_size(self, trial: Trial) -> None:
        """Refuse images that the encoder does not take, and more pools than its third layer has places."""
        self.check_encoder_size(trial, "encoder_pools", self.encoder_pools)


@part("features", "file")
class File(Features):
    """Features of a file, row by row those of one record."""

    of_file = True
    feature_file: str = setting(
        "", "safetensors file with the features of all records, one row each, in the data set's order: train [N, d] "
        "and test [M, d]; relative paths are from the experiment file", identity=False)
    feature_name: str = setting(
        "", "name that stands for that file in the tracking store, in place of its digest, which stays in the private "
        "folder; must be given where private_metrics is not plain", applies=lambda c: bool(c.feature_name))
    feature_sha256: str = setting("", "digest of that file, which it must have; by default as found",
                                  applies=lambda c: not c.feature_name)
    feature_width: int = setting(0, "d of that file; by default as found", low=0)
    feature_source: str = setting(
        "", "statement that the encoder of these features is public, and which it is, for privacy.notes")
    feature_groups: int = again("feature_groups")

    def shape(self, trial: Trial) -> tuple[int, ...]:
        return (self.feature_width,)

    def public_because(self, trial: Trial) -> str:
        file = f"called {self.feature_name}" if self.feature_name else f"SHA-256 {self.feature_sha256}"
        return (f"features from a file ({file}), row by row those of one record, which costs nothing if their encoder "
                f"is public; whoever runs the trial states of it: {self.feature_source}")

    def check_size(self, trial: Trial) -> None:
        """Refuse a file without a statement on its encoder, and a malformed name or digest."""
        source, name, sha256 = self.feature_source, self.feature_name, self.feature_sha256
        refuse(not source.strip() or "\n" in source or len(source) > MAX_SOURCE_LENGTH, "feature_source", "must say in "
               f"one line, of at most {MAX_SOURCE_LENGTH} characters, which encoder gave the features and why it is "
               "public, as 'CLIP ViT-B/32, trained on public data'; it stands in privacy.notes", repr(source))
        refuse(name and sha256, "feature_sha256", "must be left out with feature_name, which stands for the file in "
               "its place", sha256)
        refuse(name and not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", name), "feature_name", "must be letters, digits, "
               "'_', '-' and '.', at most 100, and begin with a letter or digit", repr(name))
        refuse(not name and not re.fullmatch("[0-9a-f]{64}", sha256), "feature_sha256", "must be 64 hexadecimal digits",
               f"'{sha256}'")

    def settled(self, trial: Trial) -> dict[str, Any]:
        """Return path, width and digest of the file, which it must have; `feature_name` replaces the digest."""
        settled = super().settled(trial)
        path = Path(self.feature_file).expanduser().absolute() if self.feature_file else None
        is_identified = (self.feature_sha256 or self.feature_name) and self.feature_width
        if is_identified and not (path and path.exists()):  # as where a trial comes from a tracking store
            return {**settled, "feature_file": str(path or "")}
        if path is None:
            raise ConfigError("feature_file", "must name a safetensors file with features 'file'", "''")
        if not path.exists():
            raise ConfigError(f"feature_file: {path} cannot be read (no such file); to do without it, feature_sha256 "
                              "and feature_width say which it was")
        file = file_of(path, trial.dataset)
        found: dict[str, Any] = {} if self.feature_name else {"feature_sha256": file.sha256}
        found["feature_width"] = file.width
        for name, value in found.items():
            given = getattr(self, name)
            refuse(given and given != value, name, f"must be {value}, which {path} has", given,
                   "leave it out, or name the file that was meant")
        return {**settled, "feature_file": str(path), **found}


def stated(shape: Callable[[Any], tuple[int, ...]] | tuple[int, ...], public_because: str) -> type[Features]:
    """Return a subclass of `Features` for an extension: with its shape, fixed or of a trial, and why it is public."""
    class Stated(Features):
        def shape(self, trial: Trial) -> tuple[int, ...]:
            return shape(trial) if callable(shape) else shape

        def public_because(self, trial: Trial) -> str:
            return f"features '{self.name}'{self.treatment}, {OF_ONE_RECORD}, as the extension states: {public_because}"
    return Stated

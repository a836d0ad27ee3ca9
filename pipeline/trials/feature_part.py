"""The configuration's view of features: what a network takes in, and why it needs no privacy budget (no torch)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.trials.fields import ConfigError
from pipeline.trials.part import Part, declares, fields, uses

if TYPE_CHECKING:
    from pipeline.trials.config import TrialConfig

FEATURE_SIZE = 8.0  # standard deviations of normalised features
MAX_CORRELATED_CHANNELS = 4096  # channels that are decorrelated: some minutes of a core for their eigenvectors


class Features(Part):
    """What a record becomes before a network takes it in.

    Attributes:
        raw: whether they are the records themselves.
        of_file: whether they are read from a file.
        groups: in which the features are normalised where `feature_groups` does not say.
    """

    raw: ClassVar[bool] = False
    of_file: ClassVar[bool] = False
    groups: ClassVar[int] = 0

    @property
    def hardware(self) -> bool:
        """Whether computing the features takes a real OPU."""
        return False

    def shape(self, trial: TrialConfig) -> tuple[int, ...]:
        """Return the shape of one record's features, channels first."""
        raise NotImplementedError

    def public_because(self, trial: TrialConfig) -> str:
        """Return what the features are and why they need no privacy budget; for `privacy.notes`."""
        raise NotImplementedError

    def scale(self, trial: TrialConfig) -> float:
        """Return the size to which integer arithmetic clamps a feature; 0 if the features' size is unknown."""
        is_normalised = getattr(self, "feature_groups", 0) or self.standardised
        return FEATURE_SIZE if is_normalised else 0.0

    def check_size(self, trial: TrialConfig) -> None:
        """Refuse settings or a data set for which the features cannot be computed.

        Raises:
            ConfigError: naming the setting.
        """

    def check(self, trial: TrialConfig) -> None:
        """Refuse features that cannot be computed, and groups or decorrelation that do not fit their channels.

        Raises:
            ConfigError: naming the setting.
        """
        self.check_size(trial)
        shape = self.shape(trial)
        n_channels = shape[0]
        groups = getattr(self, "feature_groups", 0)
        if groups and n_channels % groups:
            raise ConfigError(f"feature_groups: must divide the {n_channels} channels of the features, got {groups}; 0 "
                              "normalises nothing")
        if groups and math.prod(shape) == groups:
            raise ConfigError(f"feature_groups: leaves groups of one value, which normalised are all 0, got {groups}; "
                              "0 normalises nothing")
        if not self.decorrelation:
            return
        if not self.standardised:
            raise ConfigError("feature_decorrelation: takes channels that are standardised over synthetic images, got "
                              f"{self.decorrelation:g} with feature_reference 'none'; use 'dead_leaves', or 0")
        if n_channels > MAX_CORRELATED_CHANNELS and not self.blocks(trial):
            raise ConfigError(f"feature_decorrelation: takes at most {MAX_CORRELATED_CHANNELS:,} channels, got "
                              f"{self.decorrelation:g} with {n_channels:,}; take fewer channels, or 0")

    def blocks(self, trial: TrialConfig) -> list[tuple[float, TrialConfig]]:
        """Return the maps whose features stand side by side, each with its weight; nothing for a single map.

        A map is given by a trial that has its settings. The weight is the norm of a record's features by this map, in
        units that the maps share.
        """
        return []

    def settled(self, trial: TrialConfig) -> dict[str, Any]:
        """Return the value of `feature_groups` that its default of -1 stands for; nothing if it was given."""
        if getattr(self, "feature_groups", 0) >= 0:
            return {}
        return {"feature_groups": 1 if self.standardised else self.groups}

    def key(self, trial: TrialConfig) -> tuple[Any, ...]:
        """Return a key that differs for different features of the same records: the name, and the settings in use."""
        key: list[Any] = [self.name]
        for field in fields(self):
            if field.metadata["identity"] and uses(self, field, trial):
                value = getattr(self, field.name)
                # An optional number comes with its name, or it could be taken for another optional number.
                is_optional_number = field.metadata["elide"] and isinstance(value, float)
                key.append((field.name, value) if is_optional_number else value)
        return tuple(key)

    @property
    def standardised(self) -> bool:
        """Whether channels of the features are standardised over synthetic images."""
        return getattr(self, "feature_reference", "none") != "none"

    @property
    def mirrored(self) -> bool:
        """Whether features are averaged over a record and its mirror image."""
        return getattr(self, "feature_mirrored", False)

    @property
    def power(self) -> float:
        """Return the power to which features are raised."""
        return getattr(self, "feature_power", 1.0)

    @property
    def decorrelation(self) -> float:
        """Return the degree, from 0 to 1, to which channels are decorrelated over synthetic images."""
        return getattr(self, "feature_decorrelation", 0.0)

    @property
    def treatment(self) -> str:
        """Return a clause for notes: the steps that follow every map (power, mirror image, standardisation)."""
        power = f" (to the power {self.power:g})" if self.power != 1 else ""
        mirror = " of a record and its mirror image" if self.mirrored else ""
        if not self.standardised or not declares(self, "feature_reference"):
            return power + mirror
        return f"{power}{mirror}, standardised over synthetic images of dead leaves{self.decorrelating}"

    @property
    def decorrelating(self) -> str:
        """Return a clause for notes on decorrelated channels, for a place after a mention of synthetic images.

        It is empty if the channels are not decorrelated.
        """
        return f", channels decorrelated over these to the degree {self.decorrelation:g}" if self.decorrelation else ""

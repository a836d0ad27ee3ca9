"""Packs: trials that share tensor shapes and train together along a leading replica axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.trials.fields import check_whole, is_number, refuse
from pipeline.trials.shapes import ConvShape, n_parameters

if TYPE_CHECKING:
    from pipeline.trials.config import TrialConfig

# Parameters that fit into a core's caches beside activations. A pack saves the overhead of small operations. Above this
# size there is little overhead to save, and packs of three and more were measured 10% slower.
CPU_PARAMETER_BYTES = 6 * 2**20
# For a convolution's largest map, summed over a pack's trials; a step holds several maps of this size.
GPU_MAP_BYTES = 2**31
MAX_PACK_SIZE = 32
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Resources:
    """The resources of one pack while it trains, in Ray's units.

    Attributes:
        cpu: cores of every pack.
        gpu: GPUs of every pack, or a fraction of one.
        opu: optical processors of a pdfa pack; other packs take none.
        pack_size: most trials in one pack; 0 chooses it (see `pipeline.trials.packs.plan`).
        checkpoint_seconds: least time between two checkpoints of a pack; a pack is saved at the end of an epoch.
        store_patience_seconds: how long a sweep waits for a tracking store that is unreachable or locked.

    Example:
        >>> Resources(cpu=2, gpu=0.5).gpu  # two packs share a GPU
        0.5
    """

    cpu: float = 1.0
    gpu: float = 0.0
    opu: float = 1.0
    pack_size: int = 0
    checkpoint_seconds: float = 30.0
    store_patience_seconds: float = 60.0

    def __post_init__(self) -> None:
        """Refuse resources out of range, and packs that would reserve neither a CPU nor a GPU."""
        for name in ("cpu", "gpu", "opu", "checkpoint_seconds", "store_patience_seconds"):
            value = getattr(self, name)
            refuse(not is_number(value) or not 0 <= value < math.inf, f"resources.{name}", "must be a number >= 0",
                   repr(value))
        refuse(not self.opu, "resources.opu", "must be > 0", self.opu, "packs without pdfa take none anyway")
        refuse(self.cpu + self.gpu == 0, "resources.cpu", "must be > 0 where gpu is 0", self.cpu)
        check_whole("resources.pack_size", self.pack_size, 0)


@dataclass(frozen=True)
class Pack:
    """Trials with one `pack_key`; trial r is replica r of every tensor."""

    trials: tuple[TrialConfig, ...]

    def __post_init__(self) -> None:
        keys = {t.pack_key for t in self.trials}
        if len(keys) != 1:
            raise ValueError(f"trials: a pack needs trials of one pack_key, got {len(keys)}")

    @property
    def shared(self) -> TrialConfig:
        """Return a trial that represents all trials in the fields that the pack shares."""
        return self.trials[0]

    @property
    def trial_keys(self) -> list[str]:
        return [trial.trial_key for trial in self.trials]

    @property
    def needs_opu(self) -> bool:
        """Whether the pack must reserve an `OPU` resource."""
        return self.shared.needs_opu


def plan(
    trials: Sequence[TrialConfig],  # to train
    resources: Resources,  # of each pack; `pack_size` 0 takes `default_pack_size`
    workers: int,  # packs that can train at the same time
    kept: Sequence[Pack] = (),  # stay unchanged because they have a checkpoint; their trials are in no other pack
) -> list[Pack]:
    """Return the kept packs and new ones for all other trials, in the order in which they should start.

    A pack has trials of one `pack_key`, and new packs of a key are nearly equal in size. Packs that need an OPU come
    before all others, and long packs before short ones. Packs decide only the speed, and no result.
    """
    packed = {trial.trial_key for pack in kept for trial in pack.trials}
    groups: dict[str, list[TrialConfig]] = {}  # by pack_key
    for trial in trials:
        if trial.trial_key not in packed:
            groups.setdefault(trial.pack_key, []).append(trial)
    packs = list(kept)
    for group in groups.values():
        limit = resources.pack_size or default_pack_size(group[0], len(trials), workers, resources.gpu > 0)
        n_packs = math.ceil(len(group) / limit)
        bounds = [round(i * len(group) / n_packs) for i in range(n_packs + 1)]  # sizes differ by one at most
        packs += [Pack(tuple(group[start:end])) for start, end in itertools.pairwise(bounds)]
    # Few packs with an OPU can run at once, and others fill in beside them. A long pack that starts last is waited for.
    return sorted(packs, key=lambda pack: (not pack.needs_opu, -cost(pack)))


def default_pack_size(trial: TrialConfig, n_trials: int, workers: int, on_gpu: bool) -> int:
    """Return the size of packs of trials like this: it fits into caches (or a GPU), and every worker gets some."""
    limit = MAX_PACK_SIZE
    # numbers of a record in each convolution's output, before pooling
    maps = [layer.out_channels * layer.height * layer.width for layer in trial.layers if isinstance(layer, ConvShape)]
    if not on_gpu:
        limit = CPU_PARAMETER_BYTES // (FLOAT_BYTES * n_parameters(trial.layers))
    elif maps:
        limit = GPU_MAP_BYTES // (FLOAT_BYTES * trial.batch_size * max(maps))
    # Every worker gets about four packs, so that workers end at about the same time.
    return max(1, min(MAX_PACK_SIZE, limit, math.ceil(n_trials / (4 * workers))))


def cost(pack: Pack) -> float:
    """Return the approximate multiplications of a pack's training, to order packs and to estimate remaining time."""
    trial = pack.shared
    forward = sum(layer.multiplications for layer in trial.layers)  # of one record
    records = trial.batch_size * trial.steps_per_epoch * trial.epochs
    return 2.0 * forward * records * len(pack.trials)  # 2: the update takes about as many as the forward pass

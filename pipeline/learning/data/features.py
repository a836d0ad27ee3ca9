"""Features of all records of a data set: computed once per setting, kept in the cache, and shared by all processes.

A feature map is a function of one record alone, and no private record has a part in choosing it, so that it costs no
privacy. Whatever is computed over records would have to be private, and paid for: nothing here is.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pipeline.learning.data.dataset import Dataset
from pipeline.learning.data.download import DataError
from pipeline.learning.data.readers import cache_folder
from pipeline.learning.data.scattering import scattering
from pipeline.trials.config import TrialConfig
from pipeline.trials.features import record_shape

VERSION = 1  # of what is computed; a cache of another is not read
CHUNK = 64  # images at a time, which stay in a processor's cache
LEAST_VARIANCE = 1e-5  # of a group: one of equal values has none, and becomes zeros
SAID_EVERY = 10_000  # records


def feature_key(config: TrialConfig) -> tuple:
    """What features depend on, beside the records."""
    return config.features, config.scattering_scales, config.scattering_angles, config.feature_groups


def features(data: Dataset, config: TrialConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """What a trial's network takes in of the training and of the test records: uint8 pixels [N, n_0], or bfloat16
    features [N, n_0] of them, from memory, the cache, or computed now.

    Raises:
        DataError: for a cache that cannot be written.
    """
    if config.features == "pixels":
        return data.train_x, data.test_x
    key = feature_key(config)
    if key not in data.mapped:
        data.mapped[key] = _cached(data, config)
    return data.mapped[key]


def compute(records: torch.Tensor, data: Dataset, config: TrialConfig) -> torch.Tensor:
    """Features of uint8 records [n, n_features], bfloat16 [n, n_0]."""
    channels, rows, columns = data.spec.shape
    shape = record_shape(config)
    found = torch.empty(len(records), shape[0] * shape[1] * shape[2], dtype=torch.bfloat16, device=records.device)
    for begin in range(0, len(records), CHUNK):
        images = records[begin:begin + CHUNK].view(-1, rows, columns).to(torch.float32) / data.spec.scale
        maps = scattering(images, config.scattering_scales, config.scattering_angles)
        maps = maps.view(-1, channels * maps.shape[1], *maps.shape[2:])
        if config.feature_groups:
            maps = torch.nn.functional.group_norm(maps, config.feature_groups, eps=LEAST_VARIANCE)
        found[begin:begin + CHUNK] = maps.flatten(1)
        if begin // SAID_EVERY < (begin + CHUNK) // SAID_EVERY and len(records) > SAID_EVERY:
            done = min(begin + CHUNK, len(records))
            print(f"{config.features}: {done:,} of {len(records):,} records", file=sys.stderr)
    return found


def _cached(data: Dataset, config: TrialConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Of several processes one computes, the others wait and read."""
    path = cache_folder() / "features" / f"{_digest(data, config)}.safetensors"
    device = data.train_x.device
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            found = _read(path)
            if found is None:
                found = {name: compute(records, data, config).cpu()
                         for name, records in (("train", data.train_x), ("test", data.test_x))}
                part = path.with_suffix(".part")
                save_file(found, part, metadata={"sha256": _checksum(found)})
                os.replace(part, path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written to the cache ({error}); set PHOTONIC_CACHE to a folder with room "
                        "that can be written") from error
    return found["train"].to(device), found["test"].to(device)


def _read(path: Path) -> dict[str, torch.Tensor] | None:
    """What the cache has; None where there is nothing, or where it is damaged, which is said."""
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            found = {name: file.get_tensor(name) for name in ("train", "test")}
            expected = (file.metadata() or {}).get("sha256")
    except SafetensorError as error:
        print(f"{path}: damaged ({error}); computed anew", file=sys.stderr)
        return None
    if expected != _checksum(found):
        print(f"{path}: damaged (its content has another SHA-256 than was written); computed anew", file=sys.stderr)
        return None
    return found


def _checksum(found: dict[str, torch.Tensor]) -> str:
    content = hashlib.sha256()
    for name in ("train", "test"):
        content.update(found[name].view(torch.uint8).numpy())
    return content.hexdigest()


def _digest(data: Dataset, config: TrialConfig) -> str:
    """Of the records, the settings of the map and the version of its code."""
    content = hashlib.sha256(json.dumps([VERSION, *feature_key(config), data.spec.shape]).encode())
    for records in (data.train_x, data.test_x):
        content.update(records.cpu().numpy())
    return content.hexdigest()[:32]

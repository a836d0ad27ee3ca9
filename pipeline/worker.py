"""What a worker of a sweep does: train packs, epoch by epoch."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline.packs import Pack
from pipeline.records import EpochRecord

Trainer = Callable[[Pack], Iterator[EpochRecord]]


def epochs(pack: Pack, trainer: Trainer) -> Iterator[dict[str, Any]]:
    """Per epoch `{"records": one for each trial that had not ended}`; after an exception also its text."""
    live = {trial.trial_key for trial in pack.trials}
    records: list[EpochRecord] = []
    try:
        source = iter(trainer(pack))
        while live:
            records = []
            for _ in range(len(live)):
                record = next(source, None)
                if record is None:
                    raise RuntimeError(f"training ended without an outcome of {', '.join(sorted(live))}")
                records.append(record)
                if record.outcome:
                    live.remove(record.trial_key)
            yield {"records": records}
    except Exception as error:
        yield {"records": records, "error": one_line(error), "traceback": traceback.format_exc()}


def train_pack(pack: Pack, *, device: str, threads: int, data_folder: Path | None) -> Iterator[EpochRecord]:
    """The default trainer: `pipeline.training.train` on the pack's dataset."""
    import torch  # here and not above: the driver needs no torch

    from pipeline.training import train

    torch.set_num_threads(threads)
    return train(pack, _dataset(pack.shared.dataset, data_folder, device), device)


@functools.lru_cache(maxsize=2)
def _dataset(name: str, folder: Path | None, device: str) -> Any:
    """The dataset, loaded once per worker process and shared by the packs that it trains."""
    from pipeline.data import load

    return load(name, folder, device)


def one_line(error: BaseException) -> str:
    """`ValueError: what it says (training.py:120)`."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    message = str(error).strip()
    return f"{type(error).__name__}: {message.splitlines()[0] if message else 'without a message'}{place}"

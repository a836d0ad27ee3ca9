"""What was trained under a sweep's name and is not in its file: it was looked at, so the selected epsilon counts it.

A tracking store tells it (`Reader.past`). Reports and `account` price it; `status`, dry runs and sweeps say it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipeline.trials.config import TrialConfig
from pipeline.trials.fields import is_number, plain
from pipeline.trials.naming import counted
from pipeline.trials.records import Release

MOST_VALUES = 4  # of one setting, in a sentence
MOST_FIELDS = 3  # with their values, in a sentence


class Past(NamedTuple):
    """The trials of a sweep's name that released an epoch and are not in its file."""

    releases: tuple[Release, ...] = ()  # of every run of them, and further ones of trials in the file
    in_file: int = 0  # number of trials with a released epoch that the file has
    others: int = 0  # number of trials that it does not have; 0 for random stopping, which tells no number
    lost: tuple[TrialConfig, ...] = ()  # of the file: they released a name, and have no result
    no_price: str = ""  # why no epsilon covers them
    by_scores: bool = False  # whether results of some ever asked for others

    @property
    def trials(self) -> tuple[TrialConfig, ...]:
        """The trials, one with secret noise as often as it has names."""
        return tuple({(release.trial.trial_key, release.name): release.trial for release in self.releases}.values())

    def __deepcopy__(self, memo: object) -> Past:
        """Return this: it does not change, and pandas copies what a frame has as `attrs` at every step."""
        return self

    def lines(self, trials: Sequence[TrialConfig]) -> Iterator[str]:
        """Yield a line on lost trials of the file, and one on trials beside those of the file, and how they differ."""
        if self.lost:
            were = "was" if len(self.lost) == 1 else "were"
            yield (f"{counted(len(self.lost), 'trial')} of the file {were} released and lost, without a result; "
                   "selected epsilon counts what was released")
        if not self.others:
            return
        total, differences = self.in_file + self.others, self._differences(trials)
        were, are = "was" if total == 1 else "were", "is" if self.in_file == 1 else "are"
        in_brackets = f" ({differences})" if differences else ""
        yield (f"{counted(total, 'trial')} {were} trained under this name, {self.in_file} {are} in the "
               f"file{in_brackets}; selected epsilon counts them all, and another name starts another count, which "
               "does not cover them")

    def _differences(self, trials: Sequence[TrialConfig]) -> str:
        """Return the settings with other values than in the file: `learning_rate 0.5 there, 1 here`; may be empty."""
        if not self.releases or not trials:
            return ""
        algorithms = {trial.algorithm for trial in trials}  # of others, further settings differ as a consequence
        alike = [trial for trial in self.trials if trial.algorithm in algorithms] or self.trials
        there, here = _values(alike), _values(trials)
        there["algorithm"] = sorted({trial.algorithm for trial in self.trials})
        differing = [name for name in dict.fromkeys([*there, *here]) if there.get(name) != here.get(name)]
        differing.sort(key=lambda name: name == "seed")  # it says least
        texts = [f"{name} {_listed(there.get(name))} there, {_listed(here.get(name))} here"
                 for name in differing[:MOST_FIELDS]]
        if others := differing[MOST_FIELDS:]:
            texts.append(f"and {', '.join(others)}")
        return "; ".join(texts)


NO_PAST = Past()


def _values(trials: Sequence[TrialConfig]) -> dict[str, list[str]]:
    """Return the distinct values of all settings that any of the trials uses, in order, as text."""
    values: dict[str, dict[str, float]] = {}  # by name: text -> place among numbers
    for trial in trials:
        for name, value in trial.canonical().items():
            text = f"{value:g}" if isinstance(value, float) else str(plain(value))
            values.setdefault(name, {})[text] = value if is_number(value) else math.inf
    return {name: sorted(texts, key=lambda text: (texts[text], text)) for name, texts in values.items()}


def _listed(values: Sequence[str] | None) -> str:
    """Return values as text: `0.5`, `0, 1, 2`, `7 values`, `none`."""
    if not values:
        return "none"
    return ", ".join(values) if len(values) <= MOST_VALUES else f"{len(values)} values"

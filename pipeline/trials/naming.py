"""Names of trials and noise levels for people, and texts for durations and counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pipeline.trials.network import Network
from pipeline.trials.part import parts_of

if TYPE_CHECKING:
    from pipeline.trials.config import TrialConfig


def duration(seconds: float) -> str:
    """Return a duration as text, in seconds or minutes up to 99: `24 s`, `3 min`, `2 h 05 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def counted(number: object, noun: str) -> str:
    """Return `1 trial`, `3 trials`, `5 or 10 epochs`."""
    return f"{number} {noun}{'' if str(number) == '1' else 's'}"


def abridged(items: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return the first `most` items as text, with the number of the others: `a, b, c and 2 more`."""
    text, n_others = separator.join(items[:most]), len(items) - most
    return f"{text} and {n_others} more" if n_others > 0 else text


# In names of runs, which must be ASCII for some tracking databases.
SYMBOLS = {"epsilon": "eps", "label_epsilon": "label-eps", "sigma": "sigma", "z": "z", "clipping_norm": "C",
           "batch_size": "m", "learning_rate": "lr", "tau_f": "tau_f", "tau_h": "tau_h", "seed": "s"}
SPELLED: dict[str, str | int | None] = {
    "ε": "epsilon", "δ": "delta", "σ": "sigma", "τ": "tau", "≤": "<=", "≥": ">=", "±": "+-", "−": "-", "×": "x",
    "’": "'"}


def to_ascii(text: str) -> str:
    """Return a text with its symbols written out, for tracking databases that store only ASCII."""
    return text.translate(str.maketrans(SPELLED))


def noise_setting(trial: TrialConfig) -> str:
    """Return a trial's noise as it is given, for example `sigma=0.1`, `epsilon=3` (a target) or `non-private`."""
    return trial.parts.mechanism.noise_setting(trial.canonical())


def setting_key(trial: TrialConfig) -> str:
    """Return a text that is equal for trials that differ only in their seed."""
    return repr({name: value for name, value in trial.canonical().items() if name != "seed"})


def method(trial: TrialConfig) -> str:
    """Return a trial's method, as frontiers name their curves: see `method_of`."""
    return method_of(trial.algorithm, trial.network, trial.hidden)


def method_of(algorithm: str, network: str, hidden: Sequence[int]) -> str:
    """Return the algorithm; `softmax` without hidden layers, as all algorithms are the same then."""
    part = parts_of("network", Network)[network]
    return algorithm if part.own or part.convolutional or hidden else "softmax"


def computed_features(trials: Iterable[TrialConfig]) -> list[str]:
    """Return the distinct features that are computed from records, `patches of fashion_mnist`, in order of trials."""
    return list(dict.fromkeys(f"{trial.features} of {trial.dataset}" for trial in trials
                              if not trial.parts.features.raw and not trial.parts.features.of_file))


def run_name(trial: TrialConfig, also: Sequence[str] = ()) -> str:
    """Return a trial's name for people, with the fields in `also` that it uses: `dfa sigma=0.1 tau_h=2 seed=0`."""
    return " ".join(_words(trial, also))


def short_name(trial: TrialConfig, also: Sequence[str] = ()) -> str:
    """Return a `run_name` for narrow columns: `pdfa sigma0.1 s0`, `dfa eps3 C0.5 m128 s1`, `bp non-private s0`."""
    words = (word.partition("=") for word in _words(trial, also))
    return " ".join(SYMBOLS.get(name, name + sign) + value for name, sign, value in words)


def _words(trial: TrialConfig, also: Sequence[str]) -> list[str]:
    """Return the words of a trial's name: algorithm, noise, the fields in `also` that it uses, and seed, the last."""
    settings = trial.canonical()
    further = [f"{name}={settings[name]}" for name in also if name in settings]
    return [trial.algorithm, noise_setting(trial), *further, f"seed={trial.seed}"]

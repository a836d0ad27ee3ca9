"""The searchers of searches, from Ray Tune's own domains and searchers.

Like `pipeline.sweep.cluster`, it is imported after `pipeline.sweep` has set Ray's environment variables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from ray import tune

from pipeline.experiment.search import Domain, Search


class Searcher(Protocol):
    """Suggests settings, and learns from their scores."""

    def ask(self) -> dict[str, Any]:
        """Suggest a value for every setting of the space."""

    def tell(self, number: int, score: float | None) -> None:
        """Report the score of suggestion `number`, from 0; None if it has none."""


def make_searcher(search: Search) -> Searcher:
    """Make the searcher that a search names."""
    makers: dict[str, Callable[[Search], Searcher]] = {"random": RandomSearcher, "optuna": OptunaSearcher}
    return makers[search.algorithm](search)


class RandomSearcher:
    """Draws every suggestion independently."""

    def __init__(self, search: Search) -> None:
        self._space, self._generator = search.space, np.random.default_rng(search.seed)

    def ask(self) -> dict[str, Any]:
        return {name: chosen(domain, tune_domain(domain).sample(random_state=self._generator))
                for name, domain in self._space.items()}

    def tell(self, number: int, score: float | None) -> None:
        pass


class OptunaSearcher:
    """Optuna's tree-structured Parzen estimator; a round's trials without a score count as bad (constant liar)."""

    def __init__(self, search: Search) -> None:
        """Make the sampler with the search's seed; libraries are imported here, as few sweeps need them."""
        import optuna  # imported here, as few sweeps need it
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        space = OptunaSearch.convert_search_space({name: tune_domain(domain) for name, domain in search.space.items()})
        sampler = optuna.samplers.TPESampler(seed=search.seed, constant_liar=True)
        self._search = search
        self._n_suggestions = 0
        self._searcher = OptunaSearch(space, metric=search.metric, mode="max", sampler=sampler)

    def ask(self) -> dict[str, Any]:
        """Return Optuna's next suggestion, a value for every setting of the search space."""
        values = self._searcher.suggest(str(self._n_suggestions))
        self._n_suggestions += 1
        if not isinstance(values, dict):
            raise RuntimeError(f"Optuna must suggest settings for trial {self._n_suggestions} of the search, got "
                               f"{values!r}")
        return {name: chosen(domain, values[name]) for name, domain in self._search.space.items()}

    def tell(self, number: int, score: float | None) -> None:
        result = None if score is None else {self._search.metric: score}
        self._searcher.on_trial_complete(str(number), result, error=score is None)


def tune_domain(domain: Domain) -> Any:
    """Return a setting's possible values as a domain of Ray Tune; a choice becomes its index, as it may be a list."""
    if domain.kind == "choice":
        return tune.choice(range(len(domain.values)))
    kinds = {"uniform": tune.uniform, "loguniform": tune.loguniform, "randint": tune.randint}
    return kinds[domain.kind](*domain.values)


def chosen(domain: Domain, value: Any) -> Any:
    """Return the setting for a value of `tune_domain`."""
    return domain.values[value] if domain.kind == "choice" else domain.tidy(value)

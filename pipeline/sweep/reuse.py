"""Find the trials that other sweeps of the store have trained, which a file with `reuse` takes over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pipeline.experiment.experiment import Experiment
from pipeline.tracking.artifacts import BY_SCORES, DONE, REUSED, REUSED_FROM, TrackedRun, config_of
from pipeline.tracking.reader import Reader
from pipeline.trials.fields import refuse
from pipeline.trials.naming import counted


def elsewhere(experiment: Experiment, store: Reader) -> dict[str, TrackedRun]:
    """Return trial_key -> run of the trials that an experiment with `reuse` takes over; open its own sweep in `store`.

    They have ended by themselves, and their noise is recorded. A trial that its own sweep has begun is not taken over:
    together they would be two releases of one trial. A sweep that is not there, or whose trials' own scores chose what
    may be seen, is refused (`ConfigError`), and so are trials with secret noise.
    """
    if not experiment.reuse:
        return {}
    from pipeline.sweep.ledger import released_by  # imported here: accounting takes a second

    refuse(any(trial.secure for trial in experiment.possible), "reuse", "is for trials with recorded noise",
           f"{', '.join(experiment.reuse)} with noise 'secure'", "leave it out")
    others = Reader(store.uri, store.root)  # opens the other sweeps
    known = [name for name in others.sweeps() if name != experiment.name]
    accepted = f"must name other sweeps of this store, {', '.join(known) or 'which has none'}"
    found: dict[str, TrackedRun] = {}  # the first sweep with a trial counts
    for name in experiment.reuse:
        refuse(name not in known, "reuse", accepted, repr(name), "leave it out, or train that sweep first")
        others.attach(name)
        # The file is that of the last command; the tag tells of earlier ones.
        refuse(BY_SCORES in others.tags() or not others.kept_experiment(), "reuse", "must name sweeps with a file in "
               "the store, which never had random stopping: it publishes its best trial alone", repr(name),
               "leave it out")
        for run in others.runs():
            if run.status in DONE:
                run.tags = {REUSED: run.run_id, REUSED_FROM: name, **run.tags}  # a pointer has the origin already
                found.setdefault(run.trial_key, run)
    store.find(experiment.name)
    for begun in store.runs() if store.has_begun else ():
        if REUSED not in begun.tags:
            found.pop(begun.trial_key, None)
    for release in released_by(store):  # in the trash, too: noise of another size is another release
        key = release.trial.trial_key
        if key in found and release.trial.recorded_noise != config_of(found[key]).recorded_noise:
            del found[key]
    return found


def in_words(runs: Iterable[TrackedRun]) -> str:
    """Return how many of these runs are taken over, and from where: `3 trials of first, 1 trial of second`."""
    numbers = Counter(run.tags[REUSED_FROM] for run in runs if REUSED in run.tags)
    return ", ".join(f"{counted(number, 'trial')} of {name}" for name, number in numbers.items())

"""`photonic audit`: attack trials, print what is found beside claimed or certified epsilons, and log it."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.accounting.certified import with_noise
from pipeline.accounting.claimed import claimed_epsilons
from pipeline.accounting.epsilon import Epsilon
from pipeline.auditing.row_space import RowSpaceAudit, row_space_audit
from pipeline.auditing.two_point import audit_release
from pipeline.experiment.experiment import Experiment, load_experiment
from pipeline.learning.data.dataset import Dataset, load_for
from pipeline.terminal import aligned
from pipeline.tracking.artifacts import config_of
from pipeline.tracking.store import Store
from pipeline.trials.config import ConfigError, TrialConfig
from pipeline.trials.fields import UserError
from pipeline.trials.guard import guarded
from pipeline.trials.kinds import is_certified
from pipeline.trials.naming import run_name

ATTACKED = 2  # the row space attack sees updates of the first two fully connected layers
RUNS = 2000  # runs of the mechanism on each of two neighbours
BLIND_DEVIATIONS = 4  # an AUC this many standard deviations from 0.5 is no accident
LOG_FILE = "audit.txt"  # artifact of the sweep or of the trial
FINDS_AUC = 0.9  # least AUC of an attack that we call successful
HEADER = ("trial", "attack", "AUC", "TPR at 0.1% FPR", "mu audited", "mu certified", "verdict")


@dataclass(frozen=True)
class Finding:
    """The result of one attack on one trial: a row of the table, its epsilons, and values to track."""

    row: tuple[str, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    epsilons: tuple[Epsilon, ...] = ()
    exceeds: bool = False
    public: bool = False  # may be logged: computed without private records, or `private_metrics` are plain


def audit_file(path: str, number: int | None, data_folder: Path | None, steps: int,
               store_folder: Path | None) -> list[Finding]:
    """Attack a file's trials, or its trial `number`; print and return all findings, and log the publishable ones."""
    experiment = load_experiment(path)
    store = None
    if store_folder:
        store = Store(root=store_folder, create=False)
        store.attach(experiment.name)
    found = list(audit_experiment(experiment, number, data_folder, steps))
    print(table(found))
    if store:
        with _log_file(_publishable(found)) as file:
            store.log_report([file])
    return found


def audit_run(run: str, data_folder: Path | None, steps: int, store_folder: Path) -> list[Finding]:
    """Attack the trial of a trial_key or MLflow run id; print and return all findings, and log the publishable ones.

    A trial with plugins is refused, because code that a store names is never imported.
    """
    store = Store(root=store_folder, create=False)
    tracked_run = store.trial(run)
    plugins = [tag.removeprefix("plugin.") for tag in tracked_run.tags if tag.startswith("plugin.")]
    if plugins:
        raise ConfigError(f"{run}: must be a trial without plugins, as nothing that a store names is imported, got one "
                          f"with {', '.join(plugins)}; audit it by its experiment file "
                          "(`photonic audit FILE --trial N`)")
    found = audit_trial(config_of(tracked_run), data_folder, steps)
    print(table(found))
    public = _publishable(found)
    metrics = {name: value for finding in public for name, value in finding.metrics.items()}
    audited = [str(epsilon) for finding in public for epsilon in finding.epsilons if epsilon.kind == "audited"]
    with _log_file(public) as file:
        store.log_audit(tracked_run.run_id, metrics, {"privacy.audited": "; ".join(audited)} if audited else {}, file)
    return found


def audit_experiment(experiment: Experiment, number: int | None = None, data_folder: Path | None = None,
                     steps: int = 1) -> Iterator[Finding]:
    """Yield the results of attacks on all trials of an experiment, or on its trial `number`, from 1.

    Trials that differ only in the seed count once. For a search the trials are the corners of its space. The row space
    attack sees the updates of `steps` training steps.
    """
    first_by_settings: dict[TrialConfig, TrialConfig] = {}
    for trial in experiment.trials or experiment.possible:
        first_by_settings.setdefault(TrialConfig(trial.given, seed=0), trial)
    chosen = dict(enumerate(first_by_settings.values(), start=1))
    if number is not None:
        if number not in chosen:
            raise ConfigError(f"--trial: must be at least 1 and at most the {len(chosen)} of the experiment (seeds "
                              f"apart), got {number}")
        chosen = {number: chosen[number]}
    _check_steps(steps, chosen.values())
    for place, trial in chosen.items():  # all are checked before the first attack
        _, n_validation = trial.split_sizes
        if not trial.parts.network.own and not n_validation:
            raise ConfigError(f"validation_fraction: must be > 0, as the row space attack needs records that were held "
                              f"out, got 0.0 (trial {place})")
    datasets = load_for(list(chosen.values()), data_folder)
    for place, trial in chosen.items():
        yield from findings(f"{place} {trial_name(trial, experiment.varied)}", trial, datasets[trial.dataset], steps)


def audit_trial(trial: TrialConfig, data_folder: Path | None = None, steps: int = 1) -> list[Finding]:
    """Return the findings on one trial; the row space attack sees the updates of `steps` training steps."""
    _check_steps(steps, [trial])
    return list(findings(trial_name(trial), trial, load_for([trial], data_folder)[trial.dataset], steps))


def _check_steps(steps: int, trials: Iterable[TrialConfig]) -> None:
    max_steps = min((trial.steps_per_epoch for trial in trials if not trial.parts.network.own), default=1)
    if not 1 <= steps <= max_steps:
        raise ConfigError(f"--steps: must be at least 1 and at most the {max_steps} of an epoch, got {steps}")


def trial_name(trial: TrialConfig, varied: Sequence[str] = ()) -> str:
    """Return a name without the seed, as `pdfa photonic sigma=0.1`, with the settings that the trials vary."""
    algorithm, *settings, _seed = run_name(trial, varied).split(" ")
    mechanism = [trial.mechanism] if trial.parts.mechanism.private else []
    return " ".join([algorithm, *mechanism, *settings])


def findings(name: str, trial: TrialConfig, data: Dataset, steps: int) -> Iterator[Finding]:
    """Yield the findings of all attacks on a trial; of a user's network a row says why an attack does not apply."""
    noisy = with_noise(trial)
    guard: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if trial.hides_errors:
        guard = guarded(lambda line: UserError(f"{name}: cannot be attacked ({line})"), hidden=True)
    with guard:
        for finding in (*_row_space_findings(name, noisy, data, steps), *_release_findings(name, noisy)):
            yield dataclasses.replace(finding, public=finding.public or trial.disclosure == "plain")


def _row_space_findings(name: str, trial: TrialConfig, data: Dataset, steps: int) -> Iterator[Finding]:
    """Yield what the row space attack finds in the first fully connected layers, at most `ATTACKED`."""
    if trial.parts.network.own:
        yield _skipped(name, "row space", "layers are the network's affair")
        return
    first_layer = len(trial.layers) - len(trial.hidden)  # number of the first fully connected layer
    for layer in range(first_layer, min(first_layer + ATTACKED, len(trial.layers) + 1)):
        attack = row_space_audit(trial, data, layer, steps)
        epsilons: list[Epsilon] = []
        if layer == first_layer:  # the smallest claimed epsilon, once for the trial
            epsilons = sorted(claimed_epsilons(trial, trial.epochs), key=lambda epsilon: epsilon.value)[:1]
        row = (name, f"row space, layer {layer}", f"{attack.auc:.3f}", f"{attack.tpr():.1%}", "-", "-",
               _row_space_verdict(attack))
        yield Finding(row, metrics={f"audit/row_space_auc/layer_{layer}": attack.auc}, epsilons=tuple(epsilons))


def _row_space_verdict(attack: RowSpaceAudit) -> str:
    """Return what the AUC of the row space attack shows: `blind`, `sees a little` or `finds its members`.

    `blind`: the AUC is within `BLIND_DEVIATIONS` standard deviations of 0.5, the AUC of guessing. `finds its members`:
    it is at least `FINDS_AUC`. `sees a little`: anything else, an AUC far below 0.5 included, because it depends on
    membership too. A private trial may also see a little: a guarantee allows a small advantage.
    """
    n_members, n_non_members = len(attack.members), len(attack.non_members)
    # standard deviation of an AUC of guessing: of the Mann-Whitney statistic over the number of pairs
    deviation = ((n_members + n_non_members + 1) / (12 * n_members * n_non_members)) ** 0.5
    if abs(attack.auc - 0.5) <= BLIND_DEVIATIONS * deviation:
        return "blind"
    return "finds its members" if attack.auc >= FINDS_AUC else "sees a little"


def _release_findings(name: str, trial: TrialConfig) -> Iterator[Finding]:
    """Yield mu (Gaussian DP) of one step of a certified trial, measured and certified, on public synthetic inputs."""
    if not is_certified(trial):
        if trial.parts.network.own:
            yield _skipped(name, "two neighbours, one step", "no noise, no guarantee")
        return
    release = audit_release(trial, RUNS, trial.delta)
    verdict = "EXCEEDS certified" if release.exceeds else "below certified"
    row = (name, f"two neighbours, one step ({release.statistic})", f"{release.auc:.3f}", f"{release.tpr:.1%}",
           f">= {release.mu_lower:.3f}", f"{release.mu:.3f}", verdict)  # as `HEADER`
    metrics = {"audit/one_step_auc": release.auc, "audit/one_step_mu": release.mu_lower,
               release.audited.metric_name: release.audited.value}
    yield Finding(row, metrics, epsilons=(release.audited, release.certified), exceeds=release.exceeds, public=True)


def _skipped(name: str, attack: str, reason: str) -> Finding:
    return Finding((name, attack, "-", "-", "-", "-", f"does not apply: {reason}"), public=True)


def table(found: Sequence[Finding]) -> str:
    """Return findings as text: a table with one row each, followed by all epsilons with kind, relation and delta."""
    legend = "mu of one step whose batch may hold the record; audited: lower bound with 95% confidence"
    lines = [*aligned([HEADER, *(finding.row for finding in found)]), "", legend]
    for finding in found:
        name = finding.row[0]  # of the trial
        lines += [f"{name}: {epsilon}" for epsilon in finding.epsilons]
    return "\n".join(lines)


def _publishable(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings that may be logged, and print a note if some are left out."""
    public = [finding for finding in found if finding.public]
    if len(public) < len(found):
        print(f"logged: {len(public)} of {len(found)} rows; the others are computed from private records of trials "
              "whose private_metrics are not plain, and no epsilon covers them")
    return public


@contextlib.contextmanager
def _log_file(found: Sequence[Finding]) -> Iterator[Path]:
    """Yield a temporary file `LOG_FILE` with the table of these findings; it is deleted afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, LOG_FILE)
        file.write_text(table(found) + "\n", encoding="utf-8")
        yield file

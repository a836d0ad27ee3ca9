"""Settle, before a sweep trains, what an earlier worker or driver left of trials with secret noise.

A sealed result that outlived them is released, if its trials have no other name. One whose content was kept with its
run is derived again. A trial that was named, and whose result is not to be found, waits, or ends as lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from pipeline.sweep.prepare import Sweep
from pipeline.sweep.private import UnusableFile
from pipeline.sweep.progress import SweepProgress, SweepResult
from pipeline.sweep.recorder import Recorder
from pipeline.sweep.sealed import SealedFile, remove, unseal
from pipeline.tracking.artifacts import NAMED, config_of, names_of, waiting
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack
from pipeline.trials.records import Result, Sealed

Call = Callable[..., Any]  # calls a function with arguments, on the node where the files are


def call_here(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on this node."""
    return function(*arguments)


def settle_files(sweep: Sweep, recorder: Recorder, files: Iterable[SealedFile], call: Call = call_here) -> None:
    """Release the results in sealed files, which are on the node of `call`; remove those that may not be released."""
    for file in files:
        if file.problem:
            _give_up(sweep, file, call)
            continue
        try:
            pack = file.pack
        except ValueError as error:
            sweep.progress.say(f"{file} cannot be released: {error}")
            continue
        if trials := _releasable(sweep, pack, file.sealed.name):
            part = Pack(tuple(trials))
            if not _release(_writer(sweep, recorder, part), part, file, call):
                continue
        else:
            sweep.progress.say(f"{file} was removed, and nothing of it is released now: another draw of its trials "
                               "was, or may have been, or the budget does not cover it")
        call(remove, file.path)
        sweep.checkpoints.remove(pack)


def _releasable(sweep: Sweep, pack: Pack, name: str) -> list[TrialConfig]:
    """Return the trials of a pack that may be released under a name: they have it, or none and a budget covers them."""
    names = {trial: sweep.store.names(trial.trial_key) for trial in pack.trials}
    new = [trial for trial in pack.trials if not names[trial]]
    covered = new if sweep.rounds.admits(new) else []
    return [trial for trial in pack.trials if names[trial] == {name} or trial in covered]


def _release(writer: Recorder, pack: Pack, file: SealedFile, call: Call) -> bool:
    """Release the result in a sealed file, unless another draw was named; return whether the file may be removed."""
    if writer.name(pack, file.sealed):  # recorded; False if another draw of these trials was named
        try:
            result = call(unseal, file.path)
        except UnusableFile:  # damaged since it was listed: its trials wait, and the file stays
            writer.wait(pack, file.sealed)
            return False
        writer.release(pack, result)
    return True


def settle_runs(sweep: Sweep, recorder: Recorder, lost: bool) -> None:
    """Derive results that were kept with their runs; let other named trials of the file wait, or end them if `lost`."""
    for run in waiting(sweep.lease.runs()):
        pack = Pack((config_of(run),))
        name = names_of(run.tags)[0]
        sealed = Sealed(name, run.tags[f"{NAMED}{name}"].rpartition(" ")[2])  # the tag ends with the host
        if records := sweep.store.kept(run):
            writer = _writer(sweep, recorder, pack)
            writer.start(pack)
            writer.release(pack, Result(records))
        elif run.trial_key in sweep.trial_keys:
            end = recorder.lose if lost else recorder.wait
            end(pack, sealed)


def _give_up(sweep: Sweep, file: SealedFile, call: Call) -> None:
    """Remove a sealed result that cannot be read, unless trials wait for it."""
    if any(file.sealed.name in names_of(run.tags) for run in waiting(sweep.lease.runs())):
        sweep.progress.say(f"{file} was named, and cannot be read: {file.problem}")
        return
    sweep.progress.say(f"{file} was removed, nothing of it was released: {file.problem}")
    call(remove, file.path)


def _writer(sweep: Sweep, recorder: Recorder, pack: Pack) -> Recorder:
    """Return the sweep's recorder; for a pack that is no longer in the file, one that does not count its trials."""
    if set(pack.trial_keys) <= sweep.trial_keys:
        return recorder
    progress = SweepProgress(quiet=True)
    progress.add(pack.trials)
    return recorder.of(dataclasses.replace(sweep, progress=progress, result=SweepResult(0)))

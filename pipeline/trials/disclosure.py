"""The allowed store entries of a trial with `private_metrics` other than plain, and why epsilon covers them.

Every entry is a function of released iterates and public data, or has its own noise that epsilon covers. Other values
computed from private records are not allowed: training loss, alignment on training batches, validation accuracy and
counts, canaries, attacks on real batches. A metric on no list is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

ALIGNMENTS = ("alignment/layer_", "alignment/feedback/layer_")  # of the applied update, and of the feedback's
ITERATES = "released iterates and the test set, which is public"
NEIGHBOURS = "runs on neighbours that no data set has, or on test records"
METRICS = {  # by prefix of the name
    "validation/accuracy": "has Gaussian noise of its own, which epsilon covers",
    "test/accuracy": ITERATES,
    "test/worst_class_accuracy": ITERATES,
    ALIGNMENTS[0]: "a released update and the gradient of a released iterate on test records",
    ALIGNMENTS[1]: "the feedback and the gradient of a released iterate on test records",
    **dict.fromkeys(("epsilon/certified/", "epsilon/label/", "epsilon/claimed/", "epsilon/column/"), "settings alone"),
    "epsilon/audited/one_step": NEIGHBOURS,
    "audit/one_step_": NEIGHBOURS,
    "time/epoch_seconds": "the machine and the size of batches; what time tells is outside the guarantee",
}
SWEEP_METRICS = {  # for a whole sweep
    "epsilon/selected/": "settings alone",
    "epsilon/spent": "settings of trials, and how many of their epochs were released",
}
ARTIFACTS = {
    "weights.safetensors": "the last released iterate, or an average of released iterates",
    "per_class.csv": "counts on the test set alone",
    "config.json": "settings alone",
    "released.json": "all epochs of a trial with secret noise, as they are logged",
    "audit.txt": NEIGHBOURS,
}


def check_metrics(names: Iterable[str], of_sweep: bool = False) -> None:
    """Refuse metrics of a trial that is not `plain`, or of a whole sweep of such trials, that no epsilon covers."""
    allowed, who = METRICS, "a trial may log whose private_metrics are not plain"
    if of_sweep:
        allowed, who = SWEEP_METRICS, "a sweep may log"
    for name in names:
        if not name.startswith(tuple(allowed)):
            raise ValueError(f"{name}: is no metric that {who} (nothing covers it); those are {', '.join(allowed)}")

"""What the store may hold of a trial whose `private_metrics` are not plain, and why that is covered.

Everything is a function of released iterates and public data, or has noise of its own that epsilon covers. What is
computed from private records otherwise (training loss, alignment on training batches, validation accuracy and counts,
canaries, attacks on real batches) has no place here, and a metric that is on no list is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

ITERATES = "released iterates and the test set, which is public"
NEIGHBOURS = "runs on neighbours that no data set has, or on test records"
METRICS = {  # by beginning of the name
    "validation/accuracy": "has Gaussian noise of its own, which epsilon covers",
    "test/accuracy": ITERATES,
    "test/worst_class_accuracy": ITERATES,
    "alignment/layer_": "a released update and the gradient of a released iterate on test records",
    **dict.fromkeys(("epsilon/certified/", "epsilon/stated/", "epsilon/label/", "epsilon/claimed/", "epsilon/column/"),
                    "settings alone"),
    "epsilon/audited/one_step": NEIGHBOURS,
    "audit/one_step_": NEIGHBOURS,
    "trainer/": "its trainer says why it may be known (`public`)",
    "time/epoch_seconds": "the machine and the size of batches; what time tells is outside the guarantee",
}
SWEEP_METRICS = {  # of a sweep as a whole
    "best/": "means of validation accuracies that its trials log, and so as well covered as those",
    "epsilon/selected/": "settings alone",
    "epsilon/stated/": "settings alone",
    "epsilon/spent": "settings of trials, and how many of their epochs were released",
}
ARTIFACTS = {
    "weights.safetensors": "the last released iterate, or an average of released iterates",
    "per_class.csv": "counts on the test set alone",
    "config.json": "settings alone",
    "audit.txt": NEIGHBOURS,
}


def check_metrics(names: Iterable[str], known: Collection[str] = METRICS) -> None:
    """Make sure that all metrics of such a trial, or with `SWEEP_METRICS` of any sweep, may be logged.

    Raises:
        ValueError: naming the first that is on no list.
    """
    for name in names:
        if not any(name.startswith(beginning) for beginning in known):
            who = "a sweep may log" if known is SWEEP_METRICS else "a trial may log whose private_metrics are not plain"
            raise ValueError(f"{name}: is no metric that {who} (nothing covers it); those are {', '.join(known)}")

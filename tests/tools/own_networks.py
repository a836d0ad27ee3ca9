"""Sums of contributions of a user's network, as its training releases them but for the noise."""

import torch


def integer_sum(training, records, labels):
    """The exact sum of the contributions of records [n, 64], as real numbers."""
    integers, chunk = training.mechanism.sum, training.net.chunk
    integers.total.zero_()
    for x, y in zip(records.split(chunk), labels.split(chunk), strict=True):
        x, y, present = training._filled(x, y)
        training._add(x, training._signals_of(y, present, torch.zeros(1)), present)
    return integers.total * integers.unit * integers.scale

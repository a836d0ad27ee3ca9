"""Privacy events that differ in a few numbers."""

from pipeline.accounting.event import PrivacyEvent, gaussian


def changed(event: PrivacyEvent, **changes) -> PrivacyEvent:
    """The event of Gaussian noise on a sampler's batches, with other numbers."""
    names = ("sampler", "noise_multiplier", "steps", "epochs", *event.proved.rate_names)
    return gaussian(**{**{name: getattr(event, name) for name in names}, **changes})

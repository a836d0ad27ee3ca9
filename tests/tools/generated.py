"""Settings and other content of files, as hypothesis generates them."""

from hypothesis import strategies as st

from pipeline.trials.config import settings

# What YAML or JSON may have in place of anything.
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=4), part, max_size=3), max_leaves=5)


def value_of(f):
    """Values that the field alone accepts, of sizes that people give."""
    rules = f.metadata
    low, high = rules["low"], rules["high"]
    if rules["choices"]:
        return st.sampled_from(sorted(rules["choices"]))
    if isinstance(f.default, bool):
        return st.booleans()
    if isinstance(f.default, tuple):
        return st.lists(st.integers(1, 24), min_size=1, max_size=3)
    if isinstance(f.default, int):
        return st.integers(low, min(high or 300, 300))
    if isinstance(f.default, float):
        sizes = st.floats(1e-6, min(1e6 if high is None else high, 1e6), exclude_max=rules["open_high"])
        whole = [n for n in (0.0, 1.0, 2.0) if n >= low + rules["open_low"] and (high is None or n < high)]
        return st.sampled_from(whole) | sizes if whole else sizes
    return st.just(f.default)  # a text without choices


def given_settings(names=None, max_size=8):
    """Some settings, by name: of all there are, or of these."""
    fields = {f.name: value_of(f) for f in settings() if names is None or f.name in names}
    return st.lists(st.sampled_from([*fields]), unique=True, max_size=max_size).flatmap(
        lambda chosen: st.fixed_dictionaries({name: fields[name] for name in chosen}))

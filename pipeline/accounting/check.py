"""Evaluate reference cases `{"cases": [{"id", "function", "inputs", "expected", "rtol"}, ...]}` with this package."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from pipeline.accounting import audited, claimed, column, curves, event, label, leekifer
from pipeline.trials.fields import UserError
from pipeline.trials.sampler import RELATIONS, Rates

Value = float | None | Mapping[str, float | None]
KEYS = ("id", "function", "inputs", "expected", "rtol")


class CheckError(UserError, ValueError):
    """A file that cannot be evaluated; the message names the file, the case and the fault."""


class CheckResult(NamedTuple):
    """One case: the expected value, this package's value, and whether they agree within `rtol`."""

    id: str
    expected: Value
    got: Value
    rtol: float
    ok: bool


def evaluate(path: Path | str) -> list[CheckResult]:
    """Return the results of all cases of a file, in order.

    Expected values are numbers, "inf", or an object with such values. In an object, null expects null. `published` is a
    number as a paper printed it: the first value of the object must lie within one unit of its last digit.

    Raises:
        CheckError: for a missing or malformed file, an unknown function, inputs that the function does not take, or an
            expected result that the function does not give.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise CheckError(f"{path}: not JSON ({error})") from error
    cases = content.get("cases") if isinstance(content, dict) else None
    if not isinstance(cases, list) or not cases or not all(isinstance(case, dict) for case in cases):
        raise CheckError(f"{path}: must have a list `cases` of objects")
    return [_evaluate(case, f"{path}: {case.get('id', f'case {number}')}") for number, case in enumerate(cases, 1)]


def as_text(results: Sequence[CheckResult]) -> str:
    """Return one line per case, and the number of misses."""
    lines = [f"{'ok  ' if result.ok else 'MISS'} {result.id}: expected {_shown(result.expected)}, "
             f"got {_shown(result.got)}, rtol {result.rtol:g}" for result in results]
    return "\n".join([*lines, f"{len(results)} cases, {sum(not result.ok for result in results)} missed"])


def _shown(value: Value) -> str:
    """Return a value of a case as text with ten digits."""
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_shown(item)}" for key, item in value.items())
    return "none" if value is None else f"{value:.10g}"


def _evaluate(case: dict[str, Any], where: str) -> CheckResult:
    """Return the result of one reference case.

    Args:
        case: with the keys `KEYS`.
        where: file and case, for messages.

    Raises:
        CheckError: for a missing key, an unknown function, or inputs that the function does not take.
    """
    if missing := [key for key in KEYS if key not in case]:
        raise CheckError(f"{where}: lacks {', '.join(missing)}")
    name, expected, rtol = case["function"], case["expected"], case["rtol"]
    if name not in FUNCTIONS:
        raise CheckError(f"{where}: no function {name!r}; there are {', '.join(sorted(FUNCTIONS))}")
    try:
        got = FUNCTIONS[name](**case["inputs"])
        expected, rtol = _number(expected), float(rtol)
        return CheckResult(case["id"], expected, got, rtol, agree(got, expected, rtol))
    except (TypeError, ValueError, KeyError) as error:
        raise CheckError(f"{where}: {name}: {error}") from error


def _number(value: Any) -> Value:
    if isinstance(value, dict):
        return {key: _scalar(item) for key, item in value.items()}
    return _scalar(value)


def _scalar(value: Any) -> float | None:
    return None if value is None else float(value)


def agree(got: Value, expected: Value, rtol: float) -> bool:
    """Whether the function gave every expected number, within the relative tolerance `rtol`.

    Args:
        expected: a number or None, or several by name. `published` is a number as a paper printed it: the first value
            of `got` must lie within one unit of its last digit.

    Raises:
        ValueError: for an expected value that the function does not give.
    """
    if not isinstance(expected, Mapping) and not isinstance(got, Mapping):
        if got is None or expected is None:
            return got is expected
        return got == expected or abs(got - expected) <= rtol * abs(expected) < math.inf
    if (not isinstance(expected, Mapping) or not isinstance(got, Mapping)
            or expected.keys() - got.keys() - {"published"}):
        raise ValueError(f"expects {expected}, and the function gives {got}")
    published = expected.get("published")
    if not all(agree(got[key], value, rtol) for key, value in expected.items() if key != "published"):
        return False
    if published is None:
        return True
    first, unit = next(iter(got.values())), float(f"1e{Decimal(repr(published)).as_tuple().exponent}")
    return first is not None and abs(first - published) < unit


def _network_epsilon(bound: str, layers: list[list[int]], T: int, delta: float, m: int, **constants: float) -> Value:
    shapes = [claimed.Layer(n_in, n_out, **constants) for n_in, n_out in layers]
    return dict(zip(("epsilon", "alpha"), claimed.network_epsilon(BOUNDS[bound], shapes, T, delta, m), strict=True))


def _joint_column(neighbour: str, **inputs: Any) -> Value:
    _require("neighbour", neighbour, "label of record I only")
    return column.joint_column_counterexample(**inputs)


def _orders(text: str) -> range:
    """Return the orders of '2..199': 2, 3, ..., 199."""
    first, last = text.split("..")
    return range(int(first), int(last) + 1)


def _leekifer(sensitivity: float, sigma: float, epochs: int, N: int, m: int, noise_multiplier: float, T: int,
              delta: float, orders: str) -> Value:
    """Return the epsilons of `leekifer.leekifer_epsilon`, after a check that redundant inputs agree.

    The published table has sensitivity, sigma (standard deviation of the noise on the mean) and epochs. The noise
    multiplier and the number of steps T follow from them.

    Raises:
        ValueError: if the noise multiplier or T is not what the other inputs give.
    """
    for name, value, derived in (("noise_multiplier", noise_multiplier, sigma * m / sensitivity),
                                 ("T", T, N // m * epochs)):
        if not math.isclose(value, derived, rel_tol=1e-9):
            raise ValueError(f"{name}: the other inputs give {derived}, got {value}")
    return leekifer.leekifer_epsilon(N, m, noise_multiplier, T, delta, _orders(orders))


def _component_norm(**inputs: Any) -> Value:
    """Return C under component clipping, and the sensitivities of sum and mean that follow from it."""
    C = event.certified_component_norm(*(inputs[name] for name in ("tau_B", "gamma", "tau_h_prev", "bias")))
    sums = [event.sensitivity(C, relation) for relation in RELATIONS]
    return {"C": C, "sens_addremove_sum": sums[0], "sens_replace_sum": sums[1], "sens_replace_mean_m256": sums[1] / 256}


def _poisson(q: float, noise_multiplier: float, T: int, delta: float, discretization: float) -> Value:
    _require("discretization", discretization, curves.DISCRETIZATION)
    return _certified("poisson", "add/remove", noise_multiplier, T, 1, delta, sampling_rate=q)


def _without_replacement(N: int, m: int, noise_multiplier_2C: float, T: int, delta: float, orders: str) -> Value:
    """Return epsilon of batches without replacement by three accountants: two Renyi conversions, and losses."""
    curve = leekifer.leekifer_epsilon(N, m, noise_multiplier_2C, T, delta, _orders(orders))
    pld = _certified("without_replacement", "replace-one", noise_multiplier_2C, T, 1, delta, "pld", N=N, m=m)
    return {"rdp_classic": curve["epsilon_classic"], "order": curve["order"],
            "rdp_improved": curve["epsilon_improved"], "pld_two_branch": pld}


def _certified(sampler: str, relation: str, z: float, steps: int, epochs: int, delta: float,
               accountant: str | None = None, **rate: Unpack[Rates]) -> float:
    return event.epsilon(event.PrivacyEvent(sampler, relation, z, steps, epochs, **rate), delta, accountant).value


def _require(name: str, value: Any, accepted: Any) -> None:
    if value != accepted:
        raise ValueError(f"{name}: must be {accepted!r}, got {value!r}")


BOUNDS = {bound.__name__: bound for bound in (
    claimed.prop3_first, claimed.prop3_second, claimed.a1_alt, claimed.a2_equal_cov, claimed.a3_saturating,
    column.corrected_column_replace_one, column.corrected_column_add_remove)}
FUNCTIONS: dict[str, Callable[..., Any]] = {  # a `Value`, or an array of one number

    **BOUNDS,
    **{function.__name__: function for function in (
        column.alpha_max, column.single_column_eps_counterexample, column.joint_layer_floor,
        label.label_dp_photonic_layer, leekifer.leekifer_sensitivity, curves.gdp_eps)},
    "network_epsilon": _network_epsilon,
    "joint_column_counterexample": _joint_column,
    "leekifer_epsilon": _leekifer,
    "leekifer_epsilon_lemma3_printed": lambda orders, **inputs: leekifer.leekifer_epsilon_lemma3_printed(
        **inputs, orders=_orders(orders)),
    "certified_component_norm": _component_norm,
    "certified_poisson_addremove_pld": _poisson,
    "certified_wor_replaceone": _without_replacement,
    "certified_shuffled_replaceone": lambda noise_multiplier_2C, epochs, delta: _certified(
        "shuffled", "replace-one", noise_multiplier_2C, epochs, epochs, delta),
    "audit_one_run": lambda **inputs: {"eps_lower": float(audited.one_run(**inputs))},
    "audit_two_point_cp": lambda **inputs: float(audited.two_point(**inputs)),
    "audit_gdp_mu_lower": lambda **inputs: float(audited.gdp_mu_lower(**inputs)),
}

"""Reference cases, `{"cases": [{"id", "function", "inputs", "expected", "rtol"}, ...]}`, against this package."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from pipeline.accounting import claimed, column, curves, label, leekifer
from pipeline.accounting import event as gaussian
from pipeline.trials.fields import UserError

Value = float | None | dict[str, float | None]


class CheckError(UserError, ValueError):
    """A file that cannot be evaluated; the message names the file, the case and what is wrong with it."""


@dataclass(frozen=True)
class CheckResult:
    """One case: what was expected, what this package computes, and whether they agree within `rtol`."""

    id: str
    expected: Value
    got: Value
    ok: bool
    rtol: float


def evaluate(path: Path | str) -> list[CheckResult]:
    """Evaluate all cases of the file, in their order.

    Expected values are numbers, "inf", or an object of them. In an object, null expects null, and `published` is a
    number as some paper printed it: the first value of the object must lie within one unit of its last digit.

    Raises:
        CheckError: for a file that is missing or malformed, a function that does not exist, inputs that it does not
            take, or a result that the file expects and the function does not give.
    """
    return [_evaluate(case, f"{path}: {case.get('id', f'case {number}')}")
            for number, case in enumerate(_cases(Path(path)), start=1)]


def as_text(results: Sequence[CheckResult]) -> str:
    """One line for every case, and how many were missed."""
    lines = [f"{'ok  ' if result.ok else 'MISS'} {result.id}: expected {_shown(result.expected)}, "
             f"got {_shown(result.got)}, rtol {result.rtol:g}" for result in results]
    return "\n".join([*lines, f"{len(results)} cases, {sum(not result.ok for result in results)} missed"])


def _shown(value: Value) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={_shown(item)}" for key, item in value.items())
    return "none" if value is None else f"{value:.10g}"


def _cases(path: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise CheckError(f"{path}: not JSON ({error})") from error
    cases = content.get("cases") if isinstance(content, dict) else None
    if not isinstance(cases, list) or not cases or not all(isinstance(case, dict) for case in cases):
        raise CheckError(f"{path}: must have a list `cases` of objects")
    return cases


def _evaluate(case: dict[str, Any], where: str) -> CheckResult:
    missing = [key for key in ("id", "function", "inputs", "expected", "rtol") if key not in case]
    if missing:
        raise CheckError(f"{where}: lacks {', '.join(missing)}")
    function = FUNCTIONS.get(case["function"])
    if function is None:
        raise CheckError(f"{where}: no function {case['function']!r}; there are {', '.join(sorted(FUNCTIONS))}")
    try:
        got = function(**case["inputs"])
        expected, rtol = _number(case["expected"]), float(case["rtol"])
    except (TypeError, ValueError, KeyError) as error:
        raise CheckError(f"{where}: {case['function']}: {error}") from error
    return CheckResult(case["id"], expected, got, _agree(got, expected, rtol, where), rtol)


def _number(value: Any) -> Value:
    if isinstance(value, dict):
        return {key: _number(item) for key, item in value.items()}
    return None if value is None else float(value)


def _agree(got: Value, expected: Value, rtol: float, where: str) -> bool:
    if isinstance(expected, dict) != isinstance(got, dict):
        raise CheckError(f"{where}: expects {expected}, and the function gives {got}")
    if not isinstance(expected, dict):
        return _close(got, expected, rtol)
    unknown = [key for key in expected if key not in got and key != "published"]
    if unknown:
        raise CheckError(f"{where}: expects {', '.join(unknown)}, and the function gives {', '.join(got)}")
    published = expected.get("published")
    first = next(iter(got.values()))
    return (all(_close(got[key], value, rtol) for key, value in expected.items() if key != "published")
            and (published is None or abs(first - published) < _last_digit(published)))


def _close(got: float | None, expected: float | None, rtol: float) -> bool:
    if got is None or expected is None:
        return got is expected
    return got == expected or abs(got - expected) <= rtol * abs(expected) < math.inf


def _last_digit(printed: float) -> float:
    return float(Decimal(1).scaleb(Decimal(repr(printed)).as_tuple().exponent))


def _network_epsilon(bound: str, layers: list[list[int]], T: int, delta: float, m: int,
                     **constants: float) -> dict[str, float | None]:
    value, alpha = claimed.network_epsilon(
        _BOUNDS[bound], [claimed.Layer(n_in, n_out, **constants) for n_in, n_out in layers], T, delta, m)
    return {"epsilon": value, "alpha": alpha}


def _joint_column(neighbour: str, **inputs: Any) -> dict[str, float]:
    if neighbour != "label of record I only":
        raise ValueError(f"neighbour: must be 'label of record I only', got {neighbour!r}")
    return column.joint_column_counterexample(**inputs)


def _orders(text: str) -> range:
    """'2..199' is 2, 3, ..., 199."""
    first, last = text.split("..")
    return range(int(first), int(last) + 1)


def _leekifer(N: int, m: int, sensitivity: float, sigma: float, noise_multiplier: float, epochs: int, T: int,
              delta: float, orders: str) -> dict[str, float]:
    for name, value, derived in (("noise_multiplier", noise_multiplier, sigma * m / sensitivity),
                                 ("T", T, N // m * epochs)):
        if not math.isclose(value, derived, rel_tol=1e-9):
            raise ValueError(f"{name}: the other inputs give {derived}, got {value}")
    return leekifer.leekifer_epsilon(N, m, noise_multiplier, T, delta, _orders(orders))


def _lemma3(N: int, m: int, noise_multiplier: float, T: int, delta: float, orders: str) -> dict[str, float]:
    return leekifer.leekifer_epsilon_lemma3_printed(N, m, noise_multiplier, T, delta, _orders(orders))


def _component_norm(tau_B: list[float], gamma: list[float], tau_h_prev: list[float], bias: bool) -> dict[str, float]:
    C = gaussian.certified_component_norm(tau_B, gamma, tau_h_prev, bias)
    add_remove, replace = (gaussian.sensitivity(C, relation) for relation in gaussian.RELATIONS)
    return {"C": C, "sens_addremove_sum": add_remove, "sens_replace_sum": replace,
            "sens_replace_mean_m256": replace / 256}


def _poisson(q: float, noise_multiplier: float, T: int, delta: float, discretization: float) -> float:
    if discretization != curves.DISCRETIZATION:
        raise ValueError(f"discretization: must be {curves.DISCRETIZATION}, got {discretization}")
    event = gaussian.PrivacyEvent("poisson", "add/remove", noise_multiplier, T, 1, sampling_rate=q)
    return gaussian.epsilon(event, delta).value


def _without_replacement(N: int, m: int, noise_multiplier_2C: float, T: int, delta: float,
                         orders: str) -> dict[str, float]:
    curve = leekifer.leekifer_epsilon(N, m, noise_multiplier_2C, T, delta, _orders(orders))
    event = gaussian.PrivacyEvent("without_replacement", "replace-one", noise_multiplier_2C, T, 1, N=N, m=m)
    return {"rdp_classic": curve["epsilon_classic"], "order": curve["order"],
            "rdp_improved": curve["epsilon_improved"], "pld_two_branch": gaussian.epsilon(event, delta, "pld").value}


def _shuffled(noise_multiplier_2C: float, epochs: int, delta: float) -> float:
    event = gaussian.PrivacyEvent("shuffled", "replace-one", noise_multiplier_2C, epochs, epochs)
    return gaussian.epsilon(event, delta).value


def _audit(function: str, key: str = "") -> Callable[..., Value]:
    """A lower bound of `audit`, which is only imported where a file asks for one."""
    def evaluate(**inputs: float) -> Value:
        from pipeline.accounting import audited

        value = float(getattr(audited, function)(**inputs))
        return {key: value} if key else value
    return evaluate


_BOUNDS = {bound.__name__: bound for bound in (
    claimed.prop3_first, claimed.prop3_second, claimed.a1_alt, claimed.a2_equal_cov, claimed.a3_saturating,
    column.corrected_column_replace_one, column.corrected_column_add_remove)}
FUNCTIONS: dict[str, Callable[..., Value]] = {
    **_BOUNDS,
    "alpha_max": column.alpha_max,
    "network_epsilon": _network_epsilon,
    "single_column_eps_counterexample": column.single_column_eps_counterexample,
    "joint_column_counterexample": _joint_column,
    "joint_layer_floor": column.joint_layer_floor,
    "label_dp_photonic_layer": label.label_dp_photonic_layer,
    "leekifer_sensitivity": leekifer.leekifer_sensitivity,
    "leekifer_epsilon": _leekifer,
    "leekifer_epsilon_lemma3_printed": _lemma3,
    "certified_component_norm": _component_norm,
    "certified_poisson_addremove_pld": _poisson,
    "certified_wor_replaceone": _without_replacement,
    "certified_shuffled_replaceone": _shuffled,
    "gdp_eps": gaussian.gdp_eps,
    "audit_one_run": _audit("one_run", "eps_lower"),
    "audit_two_point_cp": _audit("two_point"),
    "audit_gdp_mu_lower": _audit("gdp_mu_lower"),
}

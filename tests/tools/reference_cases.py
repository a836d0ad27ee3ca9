"""Evaluate reference cases `{"cases": [{"id", "function", "inputs", "expected", "rtol"}, ...]}` with this package.

    python tests/tools/reference_cases.py FILE     # a line for each case; ends with 1 for a miss
"""

import json
import math
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[2]))

import reference_formulas as formulas

from pipeline.accounting import audited, claimed, column, curves, event


class CheckResult(NamedTuple):
    """One case: the expected value, this package's value, and whether they agree within `rtol`."""

    id: str
    expected: Any
    got: Any
    rtol: float
    ok: bool

    def __str__(self):
        return (f"{'ok  ' if self.ok else 'MISS'} {self.id}: expected {_value_text(self.expected)}, got "
                f"{_value_text(self.got)}, rtol {self.rtol:g}")


def evaluate(path):
    """Return the results of all cases of a file, in order.

    Expected values are numbers, "inf", null for no number, or an object with such values by name. There `published` is
    a number as a paper printed it: the object's first value must lie within one unit of its last digit.
    """
    results = []
    for case in json.loads(Path(path).read_text(encoding="utf-8"))["cases"]:
        got, expected, rtol = FUNCTIONS[case["function"]](**case["inputs"]), as_numbers(case["expected"]), case["rtol"]
        results.append(CheckResult(case["id"], expected, got, rtol, agree(got, expected, rtol)))
    return results


def _value_text(value):
    if isinstance(value, dict):
        return " ".join(f"{key}={_value_text(item)}" for key, item in value.items())
    return "none" if value is None else f"{value:.10g}"


def as_numbers(value):
    """Return an expected value from JSON with numbers, also the text "inf", as float; null and names stay."""
    if isinstance(value, dict):
        return {key: as_numbers(item) for key, item in value.items()}
    return None if value is None else float(value)


def agree(got, expected, rtol):
    """Whether the function gave every expected number, within the relative tolerance `rtol` (see `evaluate`)."""
    if isinstance(expected, dict):
        if not all(agree(got[key], value, rtol) for key, value in expected.items() if key != "published"):
            return False
        published, first_value = expected.get("published"), next(iter(got.values()))
        if published is None:
            return True
        last_digit = Decimal(repr(published)).as_tuple().exponent  # -2 for 0.35
        return first_value is not None and abs(first_value - published) < float(f"1e{last_digit}")
    if got is None or expected is None:
        return got is expected
    return got == expected or abs(got - expected) <= rtol * abs(expected) < math.inf  # infinite values can be equal


def _network_epsilon(bound, layers, T, delta, m, **constants):
    """Return `claimed.network_epsilon` (no guarantee) of layers (n_in, n_out) by the bound of this name in `BOUNDS`.

    `constants` are sigma, tau_B and the other fields of `claimed.Layer`, equal in all layers.
    """
    epsilon, alpha = claimed.network_epsilon(
        BOUNDS[bound], [claimed.Layer(n_in, n_out, **constants) for n_in, n_out in layers], T, delta, m)
    return {"epsilon": epsilon, "alpha": alpha}


def _joint_column(neighbour, **inputs):
    assert neighbour == "label of record I only"
    return formulas.joint_column_counterexample(**inputs)


def _orders(text):
    """Return the orders of '2..199': 2, 3, ..., 199."""
    first, last = map(int, text.split(".."))
    return range(first, last + 1)


def _leekifer(sensitivity, sigma, epochs, N, m, noise_multiplier, T, delta, orders):
    """Return the epsilons of `formulas.leekifer_epsilon`, after a check that redundant inputs agree."""
    # The published table has the sensitivity, sigma (standard deviation of the noise on the mean) and epochs.
    assert math.isclose(noise_multiplier, sigma * m / sensitivity) and T == N // m * epochs
    return formulas.leekifer_epsilon(N, m, noise_multiplier, T, delta, _orders(orders))


def _component_norm(**inputs):
    """Return C, the largest norm of a contribution under component clipping, and the sensitivities from it."""
    C = formulas.certified_component_norm(**inputs)
    replace_sum = event.sensitivity(C, "replace-one")
    return {"C": C, "sens_addremove_sum": event.sensitivity(C, "add/remove"), "sens_replace_sum": replace_sum,
            "sens_replace_mean_m256": replace_sum / 256}


def _poisson(q, noise_multiplier, T, delta, discretization):
    """Return epsilon of T steps on Poisson batches with sampling rate q; noise is over C, the sensitivity."""
    assert discretization == curves.DISCRETIZATION
    return event.PrivacyEvent("poisson", noise_multiplier, T, 1, sampling_rate=q).value(delta)


def _without_replacement(N, m, noise_multiplier_2C, T, delta, orders):
    """Return epsilon of T steps on batches of m of N records: two conversions of the Renyi curve, and pld."""
    renyi = formulas.leekifer_epsilon(N, m, noise_multiplier_2C, T, delta, _orders(orders))
    run = event.PrivacyEvent("without_replacement", noise_multiplier_2C, T, 1, N=N, m=m)
    return {"rdp_classic": renyi["epsilon_classic"], "order": renyi["order"],
            "rdp_improved": renyi["epsilon_improved"], "pld_two_branch": run.value(delta, "pld")}


def _shuffled(noise_multiplier_2C, epochs, delta):
    """Return epsilon of shuffled epochs, with noise over 2 C."""
    return event.PrivacyEvent("shuffled", noise_multiplier_2C, epochs, epochs).value(delta)


BOUNDS = {bound.__name__: bound for bound in (
    claimed.prop3_first, claimed.prop3_second, claimed.a1_alt, claimed.a2_equal_cov, claimed.a3_saturating,
    column.corrected_column_replace_one, column.corrected_column_add_remove)}
FUNCTIONS = {
    **BOUNDS,
    **{function.__name__: function for function in (
        column.alpha_max, curves.gdp_eps, formulas.single_column_eps_counterexample, formulas.joint_layer_floor,
        formulas.label_dp_photonic_layer, formulas.leekifer_sensitivity)},
    "network_epsilon": _network_epsilon,
    "joint_column_counterexample": _joint_column,
    "leekifer_epsilon": _leekifer,
    "leekifer_epsilon_lemma3_printed": lambda orders, **inputs: formulas.leekifer_epsilon_lemma3_printed(
        **inputs, orders=_orders(orders)),
    "certified_component_norm": _component_norm,
    "certified_poisson_addremove_pld": _poisson,
    "certified_wor_replaceone": _without_replacement,
    "certified_shuffled_replaceone": _shuffled,
    "audit_one_run": lambda **inputs: {"eps_lower": float(audited.one_run(**inputs))},
    "audit_two_point_cp": lambda **inputs: float(formulas.two_point(**inputs)),
    "audit_gdp_mu_lower": lambda **inputs: float(audited.gdp_mu_lower(**inputs)),
}


def main(path):
    results = evaluate(path)
    print(*results, f"{len(results)} cases, {sum(not result.ok for result in results)} missed", sep="\n")
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Reference values of papers and of independent programs, tests/data/accounting_reference.json.

A case expects a number, "inf", null for no number, or an object with such values by name. There `published` is a number
as a paper printed it: the object's first value must lie within one unit of its last digit.
"""

import json
import math
from decimal import Decimal
from pathlib import Path

import pytest
import reference_formulas as formulas

from pipeline.accounting import audited, claimed, column, curves, event

CASES = json.loads((Path(__file__).parents[1] / "data" / "accounting_reference.json").read_text())["cases"]


def _network_epsilon(bound, layers, T, delta, m, **constants):
    """Return `claimed.network_epsilon` (no guarantee) of layers (n_in, n_out) by the bound of this name in `BOUNDS`.

    `constants` are sigma, tau_B and the other fields of `claimed.Layer`, equal in all layers.
    """
    epsilon, alpha = claimed.network_epsilon(
        BOUNDS[bound], [claimed.Layer(n_in, n_out, **constants) for n_in, n_out in layers], T, delta, m)
    return {"epsilon": epsilon, "alpha": alpha}


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


BOUNDS = {bound.__name__: bound for bound in (
    claimed.prop3_first, claimed.prop3_second, claimed.a1_alt, claimed.a2_equal_cov, claimed.a3_saturating,
    column.corrected_column_replace_one, column.corrected_column_add_remove)}
FUNCTIONS = {
    **BOUNDS,
    **{function.__name__: function for function in (
        column.alpha_max, curves.gdp_eps, formulas.single_column_eps_counterexample, formulas.joint_layer_floor,
        formulas.label_dp_photonic_layer, formulas.leekifer_sensitivity)},
    "network_epsilon": _network_epsilon,
    "joint_column_counterexample": lambda neighbour, **inputs: formulas.joint_column_counterexample(**inputs),
    "leekifer_epsilon": _leekifer,
    "leekifer_epsilon_lemma3_printed": lambda orders, **inputs: formulas.leekifer_epsilon(
        **inputs, orders=_orders(orders), divergence=formulas.lemma3_rdp),
    "certified_component_norm": _component_norm,
    "certified_poisson_addremove_pld": _poisson,
    "certified_wor_replaceone": _without_replacement,
    "certified_shuffled_replaceone": lambda noise_multiplier_2C, epochs, delta: event.PrivacyEvent(
        "shuffled", noise_multiplier_2C, epochs, epochs).value(delta),
    "audit_one_run": lambda **inputs: {"eps_lower": float(audited.one_run(**inputs))},
    "audit_two_point_cp": lambda **inputs: float(formulas.two_point(**inputs)),
    "audit_gdp_mu_lower": lambda **inputs: float(audited.gdp_mu_lower(**inputs)),
}


def agree(got, expected, rtol):
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
    expected = float(expected)
    return got == expected or abs(got - expected) <= rtol * abs(expected) < math.inf  # infinite values can be equal


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_reference(case):
    """And every number of it, moved by three tolerances (or infinity made finite), is noticed."""
    got, expected, rtol = FUNCTIONS[case["function"]](**case["inputs"]), case["expected"], case["rtol"]
    assert agree(got, expected, rtol), got
    for key, value in (got if isinstance(got, dict) else {"": got}).items():
        if isinstance(got, dict) and key not in expected:
            continue
        moved = 1.0 if value is None or math.isinf(value) else value * (1 + 3 * rtol)
        assert not agree(got, {**expected, key: moved} if isinstance(got, dict) else moved, rtol)


def test_every_function_has_a_case():
    assert len(CASES) == 97 and {case["function"] for case in CASES} == set(FUNCTIONS)


def test_published_numbers_are_checked_to_their_last_digit():
    case = next(c for c in CASES if c["id"] == "audit_one_run_01")
    got = FUNCTIONS[case["function"]](**case["inputs"])
    for published, ok in ((0.673, True), (0.672, True), (0.671, False), (0.675, False), (None, True)):
        assert agree(got, {**case["expected"], "published": published}, case["rtol"]) is ok

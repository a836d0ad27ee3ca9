"""Epsilon of events that a trainer states, against closed forms."""

import math

import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SelfComposedDpEvent,
)

from pipeline.accounting.stated import StatedEvent, composed_epsilon, hashable, stated_value


def delta_of(epsilon, once, many):
    """delta at epsilon of `many` answers with two values, each e^once times as likely to be true: of the number of
    true answers under either truth (Kairouz, Oh and Viswanath 2015, theorem 3.3)."""
    true = math.exp(once) / (1 + math.exp(once))
    return sum(math.comb(many, k) * max(0.0, true**k * (1 - true)**(many - k)
                                        - math.exp(epsilon) * true**(many - k) * (1 - true)**k)
               for k in range(many + 1))


@pytest.mark.parametrize(("inner", "steps"), [(10, 1), (1, 10), (2, 5)])
def test_randomized_response_costs_as_often_as_it_is_repeated(inner, steps):
    once, delta = 0.8, 1e-2
    answer = RandomizedResponseDpEvent(2 / (1 + math.exp(once)), 2)
    event = StatedEvent("add/remove", SelfComposedDpEvent(answer, inner), steps, steps)
    value = stated_value(event, delta, "pld")
    assert delta_of(value, once, 10) <= delta < delta_of(0.995 * value, once, 10)
    assert stated_value(event, delta, "rdp/improved") >= value
    together = composed_epsilon([(SelfComposedDpEvent(event.event, steps), event.neighbours)], [], delta)
    assert together == pytest.approx(value, rel=1e-3)


def test_answers_that_tell_nothing_or_all_cost_nothing_or_infinitely_much():
    def value(share, buckets):
        event = ComposedDpEvent([RandomizedResponseDpEvent(share, buckets)] * 2)
        return stated_value(StatedEvent("replace-one", hashable(event), 3, 3), 1e-5, "pld")

    assert value(1.0, 2) == value(0.5, 1) == value(0.0, 1) == 0
    assert value(0.0, 2) == math.inf


def test_an_event_made_of_lists_can_be_looked_up():
    parts = [PoissonSampledDpEvent(0.1, ComposedDpEvent([GaussianDpEvent(2.0)])), GaussianDpEvent(3.0)]
    event = hashable(ComposedDpEvent(parts))
    assert event == ComposedDpEvent((PoissonSampledDpEvent(0.1, ComposedDpEvent((GaussianDpEvent(2.0),))), parts[1]))
    assert {event: 1}[hashable(ComposedDpEvent(list(parts)))] == 1

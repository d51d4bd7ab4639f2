"""The choice between one pass and task by task, by measured times."""

from __future__ import annotations

from halrp.serve.costs import MOST_SIZES, SHARE, TRIALS, WAYS, Costs, Way, bucket


def run(costs: Costs, seconds: dict[Way, float], calls: int, size: str = "size") -> list[Way]:
    """Calls of a size that take the given times."""
    chosen = []
    for _ in range(calls):
        way = costs.choose(size)
        costs.add(size, way, seconds[way])
        chosen.append(way)
    return chosen


def test_each_way_is_tried_and_then_the_faster_one_is_taken() -> None:
    for faster in WAYS:
        seconds: dict[Way, float] = {way: 1.0 if way == faster else 3.0 for way in WAYS}
        chosen = run(Costs(), seconds, 10)
        assert sorted(chosen[: 2 * TRIALS]) == sorted(TRIALS * WAYS)
        assert set(chosen[2 * TRIALS :]) == {faster}


def test_trying_the_slower_way_again_costs_a_small_share_of_the_time() -> None:
    for slower in (1.2, 2.0, 6.0, 40.0):
        costs, calls = Costs(), 4000
        seconds: dict[Way, float] = {"one pass": slower, "task by task": 1.0}
        spent = sum(seconds[way] for way in run(costs, seconds, calls)[2 * TRIALS :])
        assert spent / (calls - 2 * TRIALS) <= 1 + SHARE + 1e-9
        assert costs.chosen["one pass"] > TRIALS


def test_a_way_that_becomes_faster_is_noticed() -> None:
    costs = Costs()
    run(costs, {"one pass": 2.0, "task by task": 1.0}, 50)
    assert set(run(costs, {"one pass": 0.2, "task by task": 1.0}, 400)[-10:]) == {"one pass"}


def test_a_single_slow_call_does_not_change_the_choice() -> None:
    costs = Costs()
    run(costs, {"one pass": 1.0, "task by task": 3.0}, 10)
    costs.add("size", "one pass", 1000.0)
    assert costs.choose("size") == "one pass"


def test_sizes_are_apart_and_rounded_to_powers_of_two() -> None:
    costs = Costs()
    run(costs, {"one pass": 1.0, "task by task": 9.0}, 10, "small")
    assert costs.seconds("large") == {}
    assert costs.seconds("small")["one pass"] == 1.0
    assert [bucket(n) for n in (1, 2, 3, 4, 5, 64, 65)] == [1, 2, 4, 4, 8, 64, 128]


def test_a_stranger_cannot_make_it_remember_without_end() -> None:
    costs = Costs()
    for number in range(MOST_SIZES + 10):
        costs.choose(number)
    assert len(costs._sizes) <= MOST_SIZES

"""The benchmark of the number of fronts: its candidates, and the distance of the chosen number from the best one."""

from __future__ import annotations

from benchmarks.front.choice import Row, candidates, chosen, distances


def row(fronts: int, p99: float, *, failed: int = 0, cores: int = 16) -> Row:
    return Row(
        cores=cores,
        engines=2,
        fronts=fronts,
        auto=fronts == 4,
        rate=180,
        requests=540,
        failed=failed,
        late=0,
        first_p50_ms=40.0,
        first_p99_ms=p99,
    )


def test_the_chosen_number_is_that_of_a_server_with_as_many_gpus():
    assert [chosen(engines, cores) for engines, cores in ((1, 2), (1, 16), (2, 16), (4, 32))] == [1, 4, 7, 14]
    assert candidates(1) == [1, 2]
    assert candidates(4) == [1, 2, 4, 8]


def test_the_distance_is_that_of_the_99th_percentiles_and_a_failed_request_is_worse():
    rows = [row(1, 20.0, failed=1), row(2, 90.0), row(4, 62.5), row(8, 60.0), row(2, 50.0, cores=4)]
    assert distances(rows) == [["16", "2", "180", "4", "8", "62.50", "60.00", "2.5"]]

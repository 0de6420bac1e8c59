"""The capacity of a host and the part that limits it, from trials and samples that the tests make up."""

from dataclasses import asdict, replace

import pytest

from benchmarks.capacity import page as capacity_page
from benchmarks.capacity import search
from benchmarks.capacity.conditions import device_count
from benchmarks.capacity.search import Capacity, Plan
from benchmarks.scaling import page as scaling_page
from benchmarks.scaling import rows as scaling
from benchmarks.scaling import usage
from benchmarks.scaling.usage import RoleUsage, Sample
from benchmarks.serving import rows as serving
from benchmarks.serving.requests import Call

VERSIONS = {"device": "NVIDIA X", "torch": "2"}
CONDITIONS = {
    "command": "python -m benchmarks.capacity",
    "run": "now",
    "versions": VERSIONS,
    "slots": 64,
    "steps": 60,
    "timesteps": 10,
    "chars": 110,
    "utterance_s": 9.6,
    "settle_s": 2.0,
    "seconds": 6.0,
    "clients": 8,
}


def trial(level: float, ttfb: float, *, late: int = 0, refused: int = 0, audio: float = 100.0) -> serving.Row:
    """The row of so many listeners. ttfb: the time to first audio of all, in ms."""
    call = Call(due=0.0, sent=0.0, counts=True, times=[ttfb / 1e3], seconds=[0.16])
    row = serving.row("listening", level, [call])
    return replace(row, late_streams=late, refused=refused, audio_s_per_s=audio)


def test_a_trial_is_served_if_first_audio_is_in_time_and_no_request_fails():
    assert search.served(trial(1, 99), 100) and not search.served(trial(1, 101), 100)
    assert not search.served(trial(1, 50, late=1), 100) and not search.served(trial(1, 50, refused=1), 100)


def test_silence_at_the_start_of_the_audio_counts():
    call = Call(due=0.0, sent=0.0, counts=True, times=[0.05], seconds=[0.16], silent=0.08)
    heard_late = serving.row("listening", 1, [call])
    assert (heard_late.ttfb_p99_ms, heard_late.audible_p99_ms) == (pytest.approx(50), pytest.approx(130))
    assert not search.served(heard_late, 100) and search.served(heard_late, 140)


def test_counts_above_one_that_was_not_served_are_ignored():
    trials = [trial(100, 40), trial(200, 120), trial(150, 60), trial(220, 90)]
    assert search.capacity(trials, 100) == Capacity(ttfb_ms=100, listeners=150, too_many=200)
    assert search.capacity(trials, 30) == Capacity(ttfb_ms=30, listeners=0, too_many=100)
    assert search.capacity(trials, 200) == Capacity(ttfb_ms=200, listeners=220, too_many=None)


@pytest.mark.parametrize(
    "most", [{50: 300, 100: 480, 200: 540}, {50: 0, 100: 1, 200: 3}, {50: 900, 100: 900, 200: 900}]
)
def test_the_search_closes_in_on_every_bound(most):
    """For a server that serves at most so many listeners within each bound, and makes 600 s of audio a second."""
    trials = []
    while (count := search.next_count(trials, list(most), 600)) is not None:
        assert count not in [row.level for row in trials] and len(trials) < 25
        trials.append(trial(count, min((bound for bound in most if count <= most[bound]), default=1000)))
    for bound, count in most.items():
        found = search.capacity(trials, bound)
        assert found.settled and found.too_many is not None and found.listeners <= count < found.too_many
        assert found.too_many - found.listeners <= max(1, 0.04 * found.too_many)


def test_one_bound_takes_few_trials():
    trials = []
    while (count := search.next_count(trials, [100], 1.1 * 600)) is not None:
        trials.append(trial(count, 50 if count <= 520 else 150))
    assert [row.level for row in trials] == [420, 540, 480, 510, 525]


def test_a_trial_lasts_until_enough_requests_count():
    plan = Plan(bounds=[100], settle=2, seconds=6, requests=200, budget=60)
    assert plan.seconds_of(600, 9.6) == 6
    assert plan.seconds_of(100, 4.8) == pytest.approx(9.6)
    assert plan.seconds_of(1, 4.8) == 18 and plan.seconds_of(1, 30.0) == 30


def test_devices_are_counted():
    assert [device_count(devices) for devices in ("auto", "0", "0,1,2,3", "cpu:2", "cpu,cuda:0")] == [
        1,
        1,
        4,
        2,
        2,
    ]


def test_the_capacity_page_has_the_results_in_its_first_table():
    trials = [trial(400, 40), trial(500, 80), trial(520, 300, late=3)]
    plan = Plan(bounds=[50, 100], settle=2, seconds=6, requests=200, budget=60)
    saturation = trial(128, 90, audio=530.0)
    table = CONDITIONS | {"devices": "0,1", "device_count": 2} | search.outcome(saturation, trials, plan)
    page = capacity_page.render(table, "capacity-x", "x.png")
    assert "2 x NVIDIA X" in page and "| 50 ms | 400 | 200 | 500 |" in page and "| 100 ms | 500 | 250 | 520 |" in page
    assert "530 seconds of audio per second" in page and "![](x.png)" in page
    assert "![]" not in capacity_page.render(table, "capacity-x", "")


def sample(time: float, busy: float, **roles: dict[tuple[int, int], float]) -> Sample:
    return Sample(time=time, roles=roles, host=busy, gpus={0: 0.9, 1: 0.5, 2: 0.1})


def test_usage_is_the_difference_of_two_samples():
    before = sample(10.0, 100.0, fronts={(1, 1): 5.0, (1, 2): 1.0}, clients={})
    after = sample(14.0, 108.0, fronts={(1, 1): 8.0, (1, 2): 1.0, (3, 3): 2.0}, clients={})
    uses = usage.usage(before, after)
    expected = {"processes": 2, "cores": pytest.approx(1.25), "busiest_thread": pytest.approx(0.75)}
    assert asdict(uses["fronts"]) == expected
    assert uses["clients"] == RoleUsage(processes=0, cores=0, busiest_thread=0)
    assert usage.host_cores(before, after) == pytest.approx(2)
    assert usage.gpu_share([before, after], [0, 1]) == pytest.approx(0.7)
    assert usage.gpu_share([before, after], [7]) is None


def uses(fronts: float = 0.5, clients: float = 0.5) -> dict[str, RoleUsage]:
    busiest = {"engines": 1.0, "fronts": fronts, "clients": clients}
    return {role: RoleUsage(processes=1, cores=share, busiest_thread=share) for role, share in busiest.items()}


def test_the_limit_is_the_part_at_full_use():
    assert scaling.limit(uses(), 0.5, 0.99) == "GPUs"
    assert scaling.limit(uses(fronts=0.95), 0.5, 0.99) == "fronts"
    assert scaling.limit(uses(clients=0.95, fronts=0.95), 0.5, 0.99) == "clients"
    assert scaling.limit(uses(clients=0.95), 0.97, None) == "the host's cores"
    assert scaling.limit(uses(), 0.5, None) == "not seen"


def scaling_row(devices: str, fronts: int, audio: float) -> scaling.Row:
    samples = [sample(now, now, **{role: {(1, 1): 0.5 * now} for role in uses()}) for now in (0.0, 1.0)]
    return scaling.row(devices, fronts, trial(64, 90, audio=audio), samples)


def test_efficiency_is_relative_to_the_best_of_the_fewest_devices():
    rows = [scaling_row("0", 1, 500), scaling_row("0", 2, 450), scaling_row("0,1", 1, 900)]
    assert scaling.efficiencies(rows) == pytest.approx([1.0, 0.9, 0.9])


def test_the_scaling_page_shows_every_server():
    rows = [scaling_row("0", 1, 500), scaling_row("0,1", 2, 980)]
    found = {"devices": "0,1", "device_count": 2, "fronts": 2}
    plan = Plan(bounds=[100], settle=2, seconds=6, requests=200, budget=60)
    capacities = [found | search.outcome(rows[1].load, [trial(900, 80)], plan)]
    table = scaling.table(rows, capacities, together=True)
    page = scaling_page.render(CONDITIONS | table, "scaling-x", "x.png")
    assert "| 0 | 1 | 64 | 1 | 500 | 1.000 |" in page and "| 0,1 | 2 | 64 | 1 | 980 | 0.980 |" in page
    assert "0.5 (0.50)" in page and "70%" in page and "| 100 ms | 900 | 450 | - |" in page
    assert "started together" in page
    alone = scaling_page.render(CONDITIONS | scaling.table(rows, [], together=False), "scaling-x", "")
    assert "one after another" in alone and "Users in real time" not in alone

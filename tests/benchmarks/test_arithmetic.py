"""The rows of tables, from times and events that the tests make up."""

import pytest

from benchmarks import roofline
from benchmarks.measuring import bursts
from benchmarks.measuring.statistics import late, playback_end
from benchmarks.measuring.texts import text
from benchmarks.report import page, table
from benchmarks.roofline import Ceilings, floor_seconds
from benchmarks.serving import rows
from benchmarks.serving.requests import Call, PlannedRequest, RequestShape, closed_loop, listeners, open_loop
from benchmarks.trace import activities as trace
from tools import make_checkpoint

SHAPE = RequestShape(steps=6, timesteps=4, chars=40)


def test_texts_differ_in_their_first_word_only():
    one, other = text(1, 60), text(23, 60)
    assert len(one) == len(other) == 60
    assert one.split()[0] != other.split()[0] and one.split()[1:] == other.split()[1:]


def test_playback_ends_later_by_the_length_of_its_gaps():
    assert playback_end([5.0, 5.1, 5.2], [0.1, 0.2, 0.1]) == pytest.approx(5.4)
    assert playback_end([5.0, 5.3], [0.1, 0.2]) == pytest.approx(5.5)


def test_a_row_measures_steps_while_all_streams_run():
    fast = [0.1 + 0.010 * i for i in range(10)]
    slow = [0.3 + 0.020 * i for i in range(10)]  # settled at 0.34, when the other has ended
    together = bursts.row([fast, [t + 0.001 for t in fast]], 0.16)
    assert together.step_p50_ms == pytest.approx(10)
    assert together.ttfb_p50_ms == pytest.approx(100) and together.ttfb_p99_ms == pytest.approx(101)
    assert together.audio_s_per_s == pytest.approx(20 * 0.16 / 0.191)
    assert together.rtf == pytest.approx(0.1905 / 1.6)
    apart = bursts.row([fast, slow], 0.16)  # they never run together: all gaps count
    assert apart.step_p99_ms == pytest.approx(20)


def test_a_stream_is_late_if_its_playback_runs_out_of_audio():
    assert not late([5.0, 5.1, 5.3], [0.1, 0.2, 0.1])
    assert late([5.0, 5.1, 5.31], [0.1, 0.2, 0.1])


def test_the_median_row_keeps_unknown_values_unknown():
    several = [bursts.row([[0.1, 0.1 + gap]], 0.16, prompt_tokens=90) for gap in (0.01, 0.03, 0.02)]
    assert bursts.median(several).step_p50_ms == pytest.approx(20)
    assert bursts.median(several).prompt_tokens == 90 and bursts.median(several).cached_prefix_tokens is None


def test_mixed_requests_differ_in_length_and_some_come_in_pieces():
    shape = RequestShape(steps=9, min_steps=3, timesteps=4, chars=40, pieces=0.5)
    planned = [request for (request,) in open_loop(10, 200, shape, first=5, seed=1)]
    assert {request.steps for request in planned} == set(range(3, 10))
    assert 60 < sum(request.in_pieces for request in planned) < 140
    assert [request.serial for request in planned] == list(range(5, 205))
    assert planned == [request for (request,) in open_loop(10, 200, shape, first=5, seed=1)]


@pytest.fixture(scope="module")
def released() -> dict:
    """config.json of the released dimensions."""
    return make_checkpoint.config(full=True, dtype="bfloat16")


def test_the_floor_of_the_released_model(released):
    ceilings = Ceilings(4.3, 687)
    floor = {n: 1e3 * floor_seconds(released, n, ceilings) for n in (1, 16, 64)}
    assert floor[1] == pytest.approx(7595.5e6 / 4.3e12 * 1e3, rel=1e-4)  # every weight once per evaluation
    assert floor[16] == pytest.approx(2.813, rel=1e-3) and floor[64] == pytest.approx(8.660, rel=1e-3)
    cached = 1e3 * floor_seconds(released, 64, ceilings, context=500) - floor[64]
    assert cached == pytest.approx(64 * 500 * 36_864 / 4.3e12 * 1e3)  # bytes of KV cache per position
    assert roofline.modules(released, 4)["LocDiT"].reads == 3


@pytest.mark.parametrize(("model", "megabytes"), [("VoxCPM1.5", 3360.1), ("VoxCPM-0.5B", 2105.0)])
def test_the_floor_of_older_models(model, megabytes):
    config = make_checkpoint.config(full=True, dtype="bfloat16", model=model)
    assert floor_seconds(config, 1, Ceilings(4.3, 687)) == pytest.approx(megabytes * 1e6 / 4.3e12, rel=2e-3)


def due_at(request: PlannedRequest) -> float:
    """The time of a request that has one."""
    assert request.at is not None
    return request.at


def test_users_send_in_turn_and_arrivals_keep_their_rate():
    users = closed_loop(3, 2, SHAPE, first=10, seed=1)
    serials = [request.serial for requests in users for request in requests]
    assert serials == list(range(10, 19))
    assert all([request.counts for request in requests] == [False, True, True] for requests in users)
    due = [due_at(requests[0]) for requests in open_loop(20, 2000, SHAPE, first=0, seed=1)]
    assert due == sorted(due) and due[-1] == pytest.approx(100, rel=0.1)
    assert due == [due_at(requests[0]) for requests in open_loop(20, 2000, SHAPE, first=0, seed=1)]


def test_listeners_start_at_random_points_of_an_utterance():
    users = listeners(400, SHAPE, 4.0, settle=1.0, seconds=8.0, first=7, seed=1)
    every = [request for requests in users for request in requests]
    assert [request.serial for request in every] == list(range(7, 7 + len(every)))
    starts = [due_at(requests[0]) for requests in users]
    assert 0 <= min(starts) < 0.1 and 3.9 < max(starts) <= 4.0
    for start, requests in zip(starts, users, strict=True):
        due = [start + 4.0 * index for index in range(len(requests))]
        assert due[-1] < 9.0 <= due[-1] + 4.0
        assert [request.counts for request in requests] == [at >= 1.0 for at in due]
        assert all(request.at is None and request.after_playback for request in requests[1:])
    assert sum(request.counts for request in every) == 400 * 8 / 4  # the lasting rate


def call(due: float, *times: float, code: str = "OK", counts: bool = True) -> Call:
    return Call(
        due=due, sent=due, counts=counts, times=list(times), seconds=[0.16] * len(times), server_ttfb=0.01, code=code
    )


def test_a_serving_row_counts_late_refused_and_failed_requests():
    calls = [
        call(0.0, 0.05, 0.10, 0.15),
        call(1.0, 1.10, 1.50, 1.60),  # its second chunk is 240 ms late
        call(2.0, code="RESOURCE_EXHAUSTED"),
        call(3.0, 3.1, code="INTERNAL"),
    ]
    row = rows.row("open", 1, calls)
    assert (row.requests, row.refused, row.failed, row.late_streams) == (4, 1, 1, 1)
    assert row.ttfb_p99_ms == pytest.approx(100) and row.longest_gap_p99_ms == pytest.approx(400)
    assert row.audio_s_per_s == pytest.approx(7 * 0.16 / 3.1)
    with pytest.raises(RuntimeError, match="no request of open 1 succeeded"):
        rows.row("open", 1, calls[2:])


def test_a_closed_loop_is_measured_while_all_users_are_active():
    calls = [
        call(0.0, 0.1, counts=False),
        call(0.1, 0.2, 0.3, 0.4, 0.5),
        call(0.0, 0.2, counts=False),
        call(0.2, 0.3, 0.4),
    ]
    # From 0.2, when the second user's warm-up ends, to 0.4, when the same user has ended: four chunks.
    assert rows.row("closed", 2, calls).audio_s_per_s == pytest.approx(4 * 0.16 / 0.2)


def test_listeners_are_measured_while_counted_requests_are_due():
    calls = [call(0.0, 0.1, 0.2, counts=False), call(1.0, 1.1, 1.2), call(2.0, 2.1, 2.2), call(3.0, 3.1, 3.2)]
    assert rows.row("listening", 2, calls).audio_s_per_s == pytest.approx(4 * 0.16 / 2.0)


def event(cat: str, start: float, length: float, correlation: int) -> dict:
    args = {"correlation": correlation, "stream": 7}
    return {"cat": cat, "name": f"{cat}{correlation}", "ts": start, "dur": length, "args": args}


def test_idle_time_is_covered_by_no_activity():
    launch = {"cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 0, "dur": 5, "args": {"correlation": 1}}
    events = [
        launch,
        {"ph": "M", "name": "process_name"},
        event("kernel", 100, 40, 1),
        event("kernel", 120, 40, 1),  # overlaps by 20
        event("kernel", 162, 18, 1),  # after a gap of 2
        event("gpu_memcpy", 200, 20, 2),  # after a gap of 20, from outside the graph
    ]
    ran = trace.activities(events)
    row = trace.row(4, 1.0, ran, 1, steps=2)
    assert {(activity.stream, activity.in_graph) for activity in ran} == {(7, True), (7, False)}
    assert (row.kernels, row.copies, row.memsets, row.graph_nodes, row.graph_launches) == (1.5, 0.5, 0, 1.5, 0.5)
    assert row.busy_ms == pytest.approx(98 / 2 / 1e3) and row.traced_ms == pytest.approx(120 / 2 / 1e3)
    assert row.idle_share == pytest.approx(22 / 120) and row.starved_share == pytest.approx(20 / 120)
    assert trace.heaviest(ran, 2, 1) == [{"name": "kernel1", "ms": pytest.approx(98 / 2 / 1e3), "runs": 1.5}]


def test_each_graph_of_a_step_has_a_time():
    def launch(correlation: int) -> dict:
        return {
            "cat": "cuda_runtime",
            "name": "cudaGraphLaunch",
            "ts": 0,
            "dur": 5,
            "args": {"correlation": correlation},
        }

    events = [
        *map(launch, (3, 4, 5, 7, 8, 9)),
        event("gpu_memcpy", 90, 5, 2),  # of no graph
        event("kernel", 100, 10, 3),
        event("kernel", 130, 20, 3),  # the first patch: 50
        event("kernel", 150, 30, 4),
        event("kernel", 155, 95, 5),  # at the same time as the audio
        event("kernel", 250, 70, 7),
        event("kernel", 320, 10, 8),
        event("kernel", 322, 105, 9),
    ]
    ran = trace.activities(events)
    spent = {"patch": pytest.approx(0.06), "audio": pytest.approx(0.02), "language models": pytest.approx(0.1)}
    assert trace.by_graph(ran, steps=2) == spent
    assert trace.by_graph(ran, steps=3) == {}


def test_a_gap_lies_between_the_last_end_and_the_next_start():
    events = [
        event("kernel", 100, 100, 1),
        event("kernel", 120, 10, 2),  # within the first: the next one follows the first
        event("kernel", 202, 8, 3),  # after a gap of 2
        event("gpu_memcpy", 208, 12, 4),  # overlaps by 2
        event("kernel", 220, 30, 3),  # at once
        event("gpu_memcpy", 256, 4, 4),  # after a gap of 6
        event("kernel", 270, 10, 1),  # after a gap of 10
        event("kernel", 280, 10, 3),  # at once
        event("gpu_memcpy", 298, 2, 4),  # after a gap of 8
    ]
    ran = trace.activities(events)
    copy, two, one = (
        {"after": "kernel3", "before": "gpu_memcpy4", "ms": pytest.approx(14 / 2 / 1e3), "gaps": 1.0},
        {"after": "gpu_memcpy4", "before": "kernel1", "ms": pytest.approx(10 / 2 / 1e3), "gaps": 0.5},
        {"after": "kernel1", "before": "kernel3", "ms": pytest.approx(2 / 2 / 1e3), "gaps": 0.5},
    )
    assert trace.widest_gaps(ran, 2, 9) == [copy, two, one]
    assert trace.widest_gaps(ran, 2, 1) == [copy]
    assert sum(gap["ms"] for gap in trace.widest_gaps(ran, 2, 9)) == pytest.approx(26 / 2 / 1e3)
    row = trace.row(4, 1.0, ran, 1, steps=2)
    assert row.traced_ms - row.busy_ms == pytest.approx(26 / 2 / 1e3)  # all idle time


def details(peer_step: float, peer_run: str = "now") -> dict:
    """The details of a run of one stream."""
    own = bursts.row([[0.008, 0.011, 0.014, 0.017]], 0.16, prompt_tokens=90, cached_prefix_tokens=0)
    peer = bursts.row([[0.0365 + i * peer_step for i in range(5)]], 0.16)
    return {
        "command": "python -m benchmarks.report",
        "shape": {"steps": 4, "timesteps": 10},
        "ceilings": {"run": "now", "copy_tb_per_s": 4.3, "matmul_tflop_per_s": 687.0},
        "engine": {"run": "now", "versions": {"torch": "2"}, "rows": [burst_row(own)]},
        "peer": {"run": peer_run, "versions": {"torch": "2"}, "rows": [burst_row(peer)]},
    }


def burst_row(row: bursts.Row) -> dict:
    return {name: getattr(row, name) for name in bursts.Row.__dataclass_fields__}


def test_the_table_holds_both_sides_and_the_floor(released):
    bursts_table = table.table(details(0.0122), released)
    (row,) = bursts_table["rows"]
    assert list(row) == [
        "streams",
        "step_p50_ms",
        "ttfb_p50_ms",
        "audio_s_per_s",
        "floor_ms",
        "peer_step_p50_ms",
        "peer_ttfb_p50_ms",
        "peer_audio_s_per_s",
    ]
    assert row["step_p50_ms"] == pytest.approx(3) and row["peer_step_p50_ms"] == pytest.approx(12.2)
    assert row["floor_ms"] == pytest.approx(1.767, rel=1e-3)
    assert page.ratio(row, "step_p50_ms", page.KNOWN_PEER["voxcpm2"]) == pytest.approx(12.2 / 3)
    assert "4.1x" in page.render(bursts_table, details(0.0122), "here")


@pytest.mark.parametrize("peer_step", [0.0150, 0.0100])
def test_no_ratio_to_a_peer_that_deviates_from_its_known_times(released, peer_step):
    bursts_table = table.table(details(peer_step), released)
    known = page.KNOWN_PEER["voxcpm2"]
    assert page.ratio(bursts_table["rows"][0], "step_p50_ms", known) is None
    assert page.ratio(bursts_table["rows"][0], "ttfb_p50_ms", known) == pytest.approx(36.5 / 8)
    assert "states no ratio for: step at 1 stream (" in page.render(bursts_table, details(peer_step), "here")


def test_a_model_with_which_the_peer_was_never_measured_has_a_ratio():
    config = make_checkpoint.config(full=True, dtype="bfloat16", model="VoxCPM1.5")
    run = details(0.0150)
    run["engine"]["step_audio_ms"] = 80.0
    markdown = page.render(table.table(run, config), run, "here")
    assert "| 5.0x | 4.6x |" in markdown and "No other measurement of the peer with this model" in markdown
    assert "(80 ms of audio a step)" in markdown


def test_no_ratio_to_a_peer_of_another_run(released):
    bursts_table = table.table(details(0.0122, peer_run="yesterday"), released)
    assert bursts_table["rows"][0]["peer_step_p50_ms"] is None and "peer" not in bursts_table["versions"]
    assert "not measured in this run" in page.render(bursts_table, details(0.0122, "yesterday"), "here")


def traced(*counts: int) -> dict:
    """The trace in the details of a run, with ten gaps for each count of streams."""
    row = trace.row(1, 1.0, trace.activities([event("kernel", 100, 40, 1)]), 3, steps=1)
    traced_rows = [
        {name: getattr(row, name) for name in trace.Row.__dataclass_fields__} | {"streams": n} for n in counts
    ]
    added = "void at::native::vectorized_elementwise_kernel<2, at::native::CUDAFunctorOnSelf_add<long>, std::array<"
    where = (
        "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
        "at::native::(anonymous namespace)::where_"
    )
    gaps = [{"after": added, "before": where, "ms": 0.0146, "gaps": 0.9}]
    gaps += [{"after": "_step_kernel", "before": f"kernel{i}", "ms": 0.001, "gaps": 108.0} for i in range(9)]
    return {
        "run": "now",
        "rows": traced_rows,
        "heaviest": {str(n): [{"name": "_linear_kernel", "ms": 0.61, "runs": 48.0}] for n in counts},
        "widest_gaps": {str(n): gaps for n in counts},
    }


def test_the_page_lists_the_kernels_of_few_counts_of_streams(released):
    run = details(0.0122)
    bursts_table = table.table(run, released)
    markdown = page.render(bursts_table, run | {"trace": traced(1, 2, 64)}, "here")
    assert [n for n in (1, 2, 64) if f"Longest kernels at {n} stream" in markdown] == [1, 64]
    assert [n for n in (1, 2, 64) if f"Widest gaps at {n} stream" in markdown] == [1, 64]
    assert markdown.count("| `CUDAFunctorOnSelf_add` | `where_` | 0.015 | 0.9 |") == 2
    assert markdown.count("| `_step_kernel` | `kernel4` | 0.001 | 108.0 |") == 2 and "`kernel5`" not in markdown
    old = {name: part for name, part in traced(1).items() if name != "widest_gaps"}
    markdown = page.render(bursts_table, run | {"trace": old}, "here")
    assert "Longest kernels at 1 stream," in markdown and "Widest gaps" not in markdown

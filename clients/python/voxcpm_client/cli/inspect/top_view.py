"""The page of `voxcpm-grpc top`, drawn with rich."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from rich import box
from rich.align import Align
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from voxcpm_client.cli.inspect.rates import audio_rate, cpu_share, engine_rate, fronts, step_seconds
from voxcpm_client.messages.server_stats import EngineStats, FrontStats, ServerStats
from voxcpm_grpc.text.characters import escaped

BLOCKS = "▁▂▃▄▅▆▇█"
WIDE = 100  # columns of a terminal that shows the four panels side by side
BAR = 8  # columns
STATES = {
    "serving": "green",
    "ready": "green",
    "starting": "yellow",
    "draining": "yellow",
    "drained": "yellow",
    "no engine": "red",
    "given up": "red",
}
MEDIUM, HIGH = 0.75, 0.95  # a bar is yellow, or red, from these shares on
LABEL, BORDER = "bright_black", "bright_black"


def page(history: Sequence[ServerStats], target: str, width: int, fault: str = "") -> RenderableType:
    """The page of the last of the statistics; rates and curves come from all of them.

    target: the address that was asked
    width: of the terminal, in columns
    fault: the reason why there are no newer statistics
    """
    now = history[-1]
    parts: list[RenderableType] = [_header(now, target)]
    if fault:
        parts.append(Text(f" no answer: {escaped(fault)}", "bold red", overflow="ellipsis", no_wrap=True))
    for front in fronts(now):
        if front.full_remedy:
            name, remedy = escaped(front.name or "this front"), escaped(front.full_remedy)
            parts.append(Text(f" {name} is full: {remedy}", "bold red", overflow="fold"))
    wide = width >= WIDE
    parts += [_figures(history, wide), _engines(history, wide), *(_process(history, one) for one in fronts(now))]
    return Group(*parts)


def _header(now: ServerStats, target: str) -> RenderableType:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column()
    grid.add_column(justify="right")
    up = (now.read_time - now.start_time).total_seconds()
    left = Text.assemble(
        (" voxcpm-grpc ", "bold black on cyan"),
        (f" {escaped(now.version)}  ", LABEL),
        _state(now.state),
        (f"  {escaped(', '.join(now.models) or now.model or now.start_step)}", "bold"),
    )
    right = Text.assemble(
        ("up ", LABEL), _clock(up), (f"  {escaped(target)}", "cyan"), f"  {now.read_time.astimezone():%H:%M:%S} "
    )
    grid.add_row(left, right)
    return grid


def _figures(history: Sequence[ServerStats], wide: bool) -> RenderableType:
    """The four panels of figures."""
    now = history[-1]
    front, recent = now.front, now.recent
    slots = sum(engine.slots_total for engine in now.engines)
    used = sum(engine.slots_used for engine in now.engines)
    waiting = sum(engine.requests_waiting for engine in now.engines)
    resting = sum(engine.requests_resting for engine in now.engines)
    speech = _rates(history)
    panels = (
        _panel(
            "streams",
            _big(f"{front.streams}", f"of {front.max_streams}"),
            _Spark([one.front.streams for one in history], "cyan"),
            _pairs(("uploads", f"{front.uploads}"), ("ended", f"{recent.calls}/min")),
        ),
        _panel(
            "throughput",
            _big("-" if not speech else f"{speech[-1]:.1f}", "× real time"),
            _Spark(speech, "green"),
            _pairs(("failed", _count(recent.failed)), ("underruns", _count(recent.underruns))),
        ),
        _panel(
            "first audio",
            _big(*_duration(recent.first_audio_p50), "median"),
            _Spark([one.recent.first_audio_p50 or 0.0 for one in history], "magenta"),
            _pairs(
                ("p95", " ".join(_duration(recent.first_audio_p95))),
                ("p99", " ".join(_duration(recent.first_audio_p99))),
            ),
        ),
        _panel(
            "queue",
            _big(f"{waiting}", "waiting", "yellow" if waiting else ""),
            _Spark([sum(engine.requests_waiting for engine in one.engines) for one in history], "yellow"),
            _pairs(("wait p95", " ".join(_duration(recent.queue_p95))), ("resting", f"{resting}")),
            subtitle=f"{used}/{slots} slots" if slots else "",
        ),
    )
    grid, columns = Table.grid(expand=True), 4 if wide else 2
    for _ in range(columns):
        grid.add_column(ratio=1)
    for first in range(0, len(panels), columns):
        grid.add_row(*panels[first : first + columns])
    return grid


def _engines(history: Sequence[ServerStats], wide: bool) -> RenderableType:
    table = Table(box=None, expand=True, header_style=LABEL, padding=(0, 1, 0, 0))
    table.add_column("engine", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("slots", no_wrap=True)
    table.add_column("KV pages", no_wrap=True)
    columns = "queue", "step", "speed", "restarts", "prefix hits", "preempted", "pid"
    for name in columns if wide else columns[:3]:
        table.add_column(name, justify="right", no_wrap=True)
    for engine in history[-1].engines:
        table.add_row(*list(_engine(history, engine, BAR if wide else BAR // 2))[: len(table.columns)])
    if not history[-1].engines:
        table.add_row(Text("none yet", LABEL))
    return Panel(table, title=Text("engines", LABEL), title_align="left", box=box.ROUNDED, border_style=BORDER)


def _engine(history: Sequence[ServerStats], engine: EngineStats, bar: int) -> Iterable[RenderableType]:
    prompt = engine.prefix_hit_positions + engine.prefill_positions
    step, rate = step_seconds(history, engine), engine_rate(history, engine)
    yield Text(escaped(engine.name.removeprefix("engine ") or engine.device or "-"), "bold")
    yield _state(engine.state)
    yield _bar(engine.slots_used, engine.slots_total, bar)
    yield _bar(engine.pages_used, engine.pages_total, bar)
    yield _count(engine.requests_waiting, "yellow")
    yield Text(" ".join(_duration(step)))
    yield Text("-" if rate is None else f"{rate:.1f} ×")
    yield _count(engine.restarts)
    yield Text(f"{engine.prefix_hit_positions / prompt:.0%}" if prompt else "-")
    yield _count(engine.preemptions, "yellow")
    yield Text(str(engine.process_id or "-"), LABEL)


def _process(history: Sequence[ServerStats], front: FrontStats) -> RenderableType:
    share = cpu_share(history, front)
    calls = "  ".join(f"{escaped(name)} {count}" for name, count in sorted(front.open_calls.items()))
    values = (
        ("cpu", "-" if share is None else f"{share:.0%}"),
        ("loop", f"{front.loop_busy:.0%}"),
        ("memory", "-" if front.resident_bytes is None else _bytes(front.resident_bytes)),
        ("uploads", _bytes(front.upload_bytes)),
        ("tasks", str(front.tasks)),
        ("files", "-" if front.open_files is None else str(front.open_files)),
        ("voices", "-" if front.stored_voices is None else str(front.stored_voices)),
        ("calls", f"{front.calls_ended:,}"),
        ("failed", f"{front.calls_failed:,}"),
        ("open", calls or "none"),
    )
    line = Text("  ").join(Text.assemble((f"{name}\N{NO-BREAK SPACE}", LABEL), value) for name, value in values)
    return Panel(
        line,
        title=Text(f"{escaped(front.name) or 'server'} process {front.process_id}", LABEL),
        title_align="left",
        box=box.ROUNDED,
        border_style=BORDER,
    )


def _panel(title: str, *rows: RenderableType, subtitle: str = "") -> Panel:
    return Panel(
        Group(*rows),
        title=Text(title, LABEL),
        title_align="left",
        subtitle=Text(subtitle, LABEL),
        subtitle_align="right",
        box=box.ROUNDED,
        border_style=BORDER,
    )


def _big(number: str, unit: str, about: str = "") -> RenderableType:
    style = about if about in ("yellow", "red") else ""
    words = unit if style or not about else f"{unit} {about}"
    return Text.assemble((number, f"bold {style}".strip()), (f" {words}", LABEL), no_wrap=True, overflow="ellipsis")


def _pairs(*pairs: tuple[str, str | Text]) -> RenderableType:
    """Names and values on one line, which share its width."""
    grid = Table.grid(expand=True)
    cells: list[RenderableType] = []
    for number, (name, value) in enumerate(pairs):
        grid.add_column(no_wrap=True, overflow="ellipsis")
        cell = Text.assemble((f"{name} ", LABEL), value)
        cells.append(Align.right(cell) if number else cell)
    grid.add_row(*cells)
    return grid


class _Spark:
    """A curve of the last values that fit, the newest on the right, scaled to the largest one."""

    def __init__(self, values: Sequence[float], style: str) -> None:
        self._values = values
        self._style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = self._values[-options.max_width :]
        most, top = max(shown, default=0.0), len(BLOCKS) - 1
        curve = "".join(BLOCKS[max(0, round(value / most * top))] if most else BLOCKS[0] for value in shown)
        style = self._style if most else LABEL
        yield Text(BLOCKS[0] * (options.max_width - len(shown)), LABEL, no_wrap=True, end="").append(curve, style)
        yield Text("")


def _bar(used: int, total: int, width: int) -> RenderableType:
    if not total:
        return Text("-", LABEL)
    share = used / total
    style = "red" if share >= HIGH else "yellow" if share >= MEDIUM else "green"
    filled = min(width, max(round(share * width), 1 if used else 0))
    return Text.assemble(("━" * filled, style), ("━" * (width - filled), LABEL), f" {used:,}/{total:,}")


def _state(state: str) -> Text:
    style = STATES.get(state, "red")
    return Text.assemble(("● ", style), (escaped(state), style))


def _count(number: int, style: str = "red") -> Text:
    return Text(f"{number:,}", style if number else "")


def _rates(history: Sequence[ServerStats]) -> list[float]:
    return [audio_rate(before, after) for before, after in pairwise(history)]


def _duration(seconds: float | None) -> tuple[str, str]:
    """A number and its unit."""
    if seconds is None:
        return "-", ""
    if seconds < 1:
        return f"{1000 * seconds:.0f}" if seconds >= 0.01 else f"{1000 * seconds:.1f}", "ms"
    return f"{seconds:.1f}", "s"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (f"{days} d " if days else "") + f"{hours:02}:{minutes:02}:{rest:02}"


def _bytes(number: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"

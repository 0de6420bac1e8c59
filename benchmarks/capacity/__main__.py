"""Find how many listeners a server can serve in real time, for each bound on the time until the first sound is heard.

    python -m benchmarks.capacity --model demo --ttfb-ms 100,200 --steps 20 --name here
    python -m benchmarks.capacity --model DIR --devices 0 --ttfb-ms 50,100,200 --name h200
    python -m benchmarks.capacity --target HOST:PORT --ttfb-ms 200

A listener plays speech without a pause: each request is sent when playback of the one before has ended. A number of
listeners is served within a bound if 99 of 100 requests are heard at the client within the bound, no
playback runs out of audio, and no request is refused or fails. A closed loop first measures the seconds of audio that
the server makes per second. That is about the number of listeners that it could serve without any bound. Short trials
then search for the largest number within each bound. The command writes capacity-NAME.json, .md and .png into `--out`.
Flags that are not listed here go to the server that is started.
"""

from __future__ import annotations

from benchmarks.capacity import page
from benchmarks.capacity.conditions import (
    NO_LIMIT,
    add_flags,
    conditions,
    device_count,
    model_info,
    plan,
    printed,
    utterance,
)
from benchmarks.capacity.search import outcome, search
from benchmarks.measuring.flags import command_parser, floats
from benchmarks.serving import loads, rows, servers
from benchmarks.serving.clients import ClientProcesses
from benchmarks.serving.loads import LoadRunner, request_shape


def main() -> None:
    parser = command_parser(__doc__)
    servers.add_flags(parser)
    parser.add_argument(
        "--devices", help="devices of the server that is started, such as 0,1 or cpu:2; with --target, those it runs on"
    )
    parser.add_argument(
        "--ttfb-ms", type=floats, default=[50, 100, 200], help="bounds on the time until the first sound, in ms"
    )
    loads.add_flags(parser)
    add_flags(parser)
    options, extra = parser.parse_known_args()  # all others are the server's
    trials, devices = plan(options), device_count(options.devices or ("0" if options.target else "auto"))
    if not options.target:
        extra = [*NO_LIMIT, *(["--devices", options.devices] if options.devices else []), *extra]

    with servers.reached(options, extra) as targets, ClientProcesses(targets, options.clients) as clients:
        info = model_info(targets[0])
        runner = LoadRunner(clients=clients, shape=request_shape(options))
        runner.warm_up(devices)
        print(rows.HEADINGS)
        users = devices * (options.users or info.max_slots)
        (saturation,) = printed([rows.row("closed", users, runner.closed(users))])
        found = printed(search(runner, utterance(options, info), trials, saturation.audio_s_per_s))
    chosen = extra[extra.index("--fronts") + 1] if "--fronts" in extra else "auto"
    fronts = len(targets) if options.target else chosen
    server = {"devices": options.devices or "auto", "device_count": devices, "fronts": fronts}
    table = conditions(options, info) | server | outcome(saturation, found, trials)
    for one in table["capacities"]:
        print(page.capacity_line(one))
    page.publish(table, options.out, f"capacity-{options.name}")


if __name__ == "__main__":
    main()

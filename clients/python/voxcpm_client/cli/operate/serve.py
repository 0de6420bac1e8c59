"""`voxcpm-grpc serve`, and the import of packages that only some commands need."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING

import click

from voxcpm_grpc import __version__
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.imports import importing

if TYPE_CHECKING:
    from voxcpm_grpc.settings.schema import Settings
    from voxcpm_grpc.worker.standby import StandbyProcess

log = logging.getLogger("voxcpm_server")

OUR_PACKAGES = ("voxcpm_grpc", "voxcpm_server")
SERVER_PACKAGES = ("grpc_health", "msgspec", "pydantic", "torch", "zmq")  # every server needs them
INSTALL_SERVER = "pip install 'voxcpm-grpc[server]'"


class Serve(click.Command):
    """A command whose flags are those of the settings schema. click sees them only to complete a command line."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        found = super().get_params(ctx)
        return [*_flags(), *found] if ctx.resilient_parsing else found


def _flags() -> Iterator[click.Option]:
    """The flags for completion; none without the packages of the server."""
    try:
        sources = importlib.import_module("voxcpm_grpc.settings.sources")
    except ImportError:
        return
    yield click.Option(["--config"], type=click.Path(), help="TOML file of settings")
    yield click.Option(["--print-config"], is_flag=True, help="print the effective settings as TOML and exit")
    for flag in sources.flags():
        kind = click.Choice(flag.choices) if flag.choices else click.Path() if flag.is_path else click.STRING
        variable = flag.name.strip("-").replace("-", "_").replace(".", "_")
        yield click.Option([flag.name, variable], type=kind, help=flag.description)


@click.command(
    cls=Serve,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    options_metavar="[--SETTING VALUE]...",
    short_help="Run a server. `serve --help` lists its settings.",
)
@click.argument("settings", nargs=-1, type=click.UNPROCESSED)
def serve(settings: tuple[str, ...]) -> None:
    """Run a server. The settings schema defines the flags."""
    config = import_or_explain("voxcpm_grpc.settings.sources", INSTALL_SERVER)
    flags = [_long(word) for word in settings if word != "--print-config"]
    if {"-h", "--help"} & set(flags):
        click.echo(f"Usage: voxcpm-grpc serve [--SETTING VALUE]...\n\n{config.help_text()}", nl=False)
        return
    effective = None
    try:
        effective = config.load(flags)
        if "--print-config" in settings:
            click.echo(config.to_toml(effective), nl=False)
            return
        if any(importlib.util.find_spec(name) is None for name in SERVER_PACKAGES):
            raise missing(INSTALL_SERVER)
        import_or_explain("voxcpm_grpc.logs", INSTALL_SERVER).set_up(effective.log)
        # The import is here, because the next one takes half a second.
        log.info("start: voxcpm-grpc %s, model=%s listen=%s", __version__, effective.model, effective.listen)
        with _first_engine(effective) as standby:
            import_or_explain("voxcpm_server.main", INSTALL_SERVER).serve(effective, standby)
    except StartupError as error:
        if effective is not None and effective.log_format == "json":
            log.error("%s", error)
            raise SystemExit(1) from None
        raise click.ClickException(str(error)) from None


@contextmanager
def _first_engine(settings: Settings) -> Generator[StandbyProcess | None]:
    """The process of the first engine, which imports PyTorch while this one imports the server; None on Ray.

    None also if it cannot start: the server then says what it cannot start.
    """
    if settings.pool != "processes":
        yield None
        return
    from voxcpm_grpc.settings.models import models
    from voxcpm_grpc.worker.standby import PrepareFirst, StandbyProcess

    engines = (engine for one in models(settings) for engine in one.engines.values())
    prepare = PrepareFirst(kernels=any(not engine.device.startswith("cpu") for engine in engines))
    with ExitStack() as stack:
        standby = None
        with suppress(OSError), ThreadPoolExecutor(1) as threads:  # Ctrl-C interrupts a start in the main thread
            standby = threads.submit(StandbyProcess, prepare, settings.log).result()
            stack.callback(standby.close)
        yield standby


def _long(word: str) -> str:
    """A flag in its long form: --http is short for --http.listen."""
    name, equals, value = word.partition("=")
    return f"--http.listen{equals}{value}" if name == "--http" else word


def import_or_explain(name: str, remedy: str) -> ModuleType:
    """Import a module of the server. Raises ClickException, with the remedy, if a package is missing."""
    try:
        with importing(name):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in OUR_PACKAGES:  # the installation is broken, no extra is missing
            raise
        raise missing(remedy) from error


def missing(remedy: str) -> click.ClickException:
    """The error of a command whose packages are not installed."""
    return click.ClickException(f"this command needs packages that are not installed; install them with: {remedy}")

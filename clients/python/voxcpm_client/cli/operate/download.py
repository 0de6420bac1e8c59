"""`voxcpm-grpc download`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import click

from voxcpm_client.cli.operate.serve import import_or_explain, missing
from voxcpm_grpc.errors import StartupError

INSTALL = "pip install 'voxcpm-grpc[download]'"
TRY_AGAIN = 75  # sysexits.h calls it EX_TEMPFAIL
LINE_SECONDS = 5.0  # seconds between lines of progress, if stderr is not a terminal
REFRESH_SECONDS = 0.2
RATE_SECONDS = 1.0  # seconds of the shortest time from which a rate is computed


class TryAgain(click.ClickException):
    """An error that another attempt may not meet."""

    exit_code = TRY_AGAIN


@click.command()
@click.argument("model")
@click.option("--revision", metavar="NAME", help="Branch, tag or commit of the repository. Default: its main branch.")
@click.option(
    "--cache-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for downloads, also of `serve --cache-dir`. Default: the cache of Hugging Face.",
)
@click.option(
    "--to",
    "copy",
    type=click.Path(file_okay=False, path_type=Path),
    help="Download into this folder instead of the cache, as plain files beside a file SHA256SUMS, to take along to a "
    "host without a network.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with a token that may read the repository. Default: HF_TOKEN, or the login of `hf auth login`.",
)
@click.option("--dry-run", is_flag=True, help="Print the files and their sizes, and download nothing.")
def download(
    model: str,
    revision: str | None,
    cache_dir: Path | None,
    copy: Path | None,
    token_file: Path | None,
    dry_run: bool,
) -> None:
    """Download a model, check its files, and print its directory.

    MODEL is the id of a Hugging Face repository, such as openbmb/VoxCPM2. Sizes and progress go to stderr. A download
    that was broken off continues where it ended, and files that are here are not downloaded again but checked.

    The exit code is 75 if another attempt may succeed, such as after a broken connection, and 1 if it cannot.

    \b
    Examples:
      voxcpm-grpc download openbmb/VoxCPM2
      voxcpm-grpc download openbmb/VoxCPM2 --dry-run
      voxcpm-grpc download org/private --token-file token.txt --revision v2
      voxcpm-grpc download openbmb/VoxCPM2 --to ./VoxCPM2 && tar cf VoxCPM2.tar VoxCPM2
    """
    if copy and cache_dir:
        raise click.UsageError("--to and --cache-dir exclude each other")
    checkpoint = import_or_explain("voxcpm_grpc.checkpoint", INSTALL)
    hub = import_or_explain("voxcpm_grpc.hub.download", INSTALL)
    try:
        token = token_file.read_text("utf-8").strip() if token_file else None
        if not checkpoint.is_repository(model):
            click.echo(checkpoint.resolve(model, revision))
            return
        listing = checkpoint.list_repository(model, revision, token)
        if listing is None:
            _without_list(checkpoint, model, revision, cache_dir, unusable=bool(copy or dry_run))
            return
        entry = hub.CacheEntry.of(listing, cache_dir, copy)
        absent = listing.size - sum(entry.present(file) for file in listing.files)
        _say(
            f"{model} at {listing.commit[:12]}: {len(listing.files)} files, {hub.gigabytes(listing.size)}, of which "
            f"{hub.gigabytes(absent)} are to be downloaded into {entry.folder}"
        )
        if dry_run:
            for file in sorted(listing.files, key=lambda file: file.name):
                click.echo(f"{file.size:>15,}  {file.name}")
            return
        hub.require_space(listing, entry)
        progress = import_or_explain("voxcpm_grpc.progress", INSTALL)
        with progress.reported_to(_display(hub.gigabytes)):
            if copy:
                path = checkpoint.copied(listing, copy, token=token)
            else:
                path = checkpoint.fetched(model, revision, cache_dir, listing, token=token)
            hub.check(listing, path)
        _say(f"{len(listing.files)} files have the sizes and sums that the repository lists")
        click.echo(path)
    except ModuleNotFoundError as error:
        raise missing(INSTALL) from error
    except StartupError as error:
        kind = TryAgain if isinstance(error, hub.Interrupted) else click.ClickException
        raise kind(str(error)) from None


def _without_list(checkpoint: Any, model: str, revision: str | None, cache_dir: Path | None, unusable: bool) -> None:
    """Print the directory of a model in the cache. Raises TryAgain if it is not there, all of it."""
    if unusable:
        raise TryAgain(f"the repository {model} cannot be reached, or does not list sizes; check the network")
    try:
        path = checkpoint.fetched(model, revision, cache_dir, None)
    except StartupError as error:
        raise TryAgain(str(error)) from None
    _say(f"the repository {model} cannot be reached, or does not list sizes; its files were not checked")
    click.echo(path)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _display(size: Callable[[int], str]) -> Callable[[Any], None]:
    """A listener that shows progress on stderr: one line that changes on a terminal, else a line now and then."""
    terminal = sys.stderr.isatty()
    step, first, began, shown_at, shown = "", 0, 0.0, 0.0, False  # `shown` is the end of the step

    def show(progress: Any) -> None:
        nonlocal step, first, began, shown_at, shown
        now, ended = monotonic(), progress.done == progress.total
        if progress.step != step:
            step, first, began, shown = progress.step, progress.done, now, False
        elif (ended and shown) or (not ended and now - shown_at < (REFRESH_SECONDS if terminal else LINE_SECONDS)):
            return
        shown_at = now
        text = str(progress)
        if now - began > RATE_SECONDS and progress.done > first:
            rate = (progress.done - first) / (now - began)
            text += f", {size(int(rate))}/s, {max(0, progress.total - progress.done) / rate:.0f} s left"
        shown = ended
        click.echo(f"\r\033[K{text}" if terminal else text, nl=ended or not terminal, err=True)

    return show

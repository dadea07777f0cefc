"""`up`, `down` and `media-driver`: what the rest talks to."""

from __future__ import annotations

import os
from pathlib import Path

import click

from tensor_pool.cli.output import example, print_json
from tensor_pool.client.admin import AdminClient
from tensor_pool.config import load
from tensor_pool.errors import MediaDriverTimeoutError, TensorPoolError
from tensor_pool.runtime import RuntimeDirectory, ShutdownSignal, find_stack
from tensor_pool.stack import Stack, StackSettings
from tensor_pool.transport import MediaDriverSettings, run_media_driver

WATCH_S = 0.1


@click.command(epilog=example("tensor-pool up", "tensor-pool up --config stack.toml"))
@click.option("--config", "path", type=click.Path(path_type=Path), default=None, help="TOML file; see `tensor-pool config generate`.")
@click.option(
    "--aeron-dir",
    type=click.Path(file_okay=False),
    default=None,
    help="Use the media driver of this directory (`tensor-pool media-driver`, or any aeronmd) instead of one inside this process.",
)
@click.option("--json", "as_json", is_flag=True, help="Say what happens as JSON lines.")
def up(path: Path | None, aeron_dir: str | None, as_json: bool) -> None:
    """Start a stack for this user and keep it running until Ctrl-C: media driver, SHM driver, admin socket."""
    # relative to where the command is typed
    given = {"driver.aeron_dir": aeron_dir and os.path.abspath(aeron_dir)}
    loaded = load(StackSettings, path, os.environ, given)
    directory = RuntimeDirectory.locate()
    with loaded.naming_origins(), ShutdownSignal() as shutdown, Stack(loaded.settings, directory=directory) as stack:
        if as_json:
            print_json({"event": "ready", "stack": str(directory.stack_file), "aeron_dir": stack.description.aeron_dir})
        else:
            click.echo(f"The stack runs: {directory.stack_file}", err=True)
            click.echo("Try `tensor-pool publish` and `tensor-pool tap camera-1` in other terminals. Ctrl-C ends it.", err=True)
        while not shutdown.event.wait(WATCH_S) and not stack.stop_requested.is_set():
            pass
        error, aeron_dir = stack.error, stack.description.aeron_dir
    if isinstance(error, MediaDriverTimeoutError):
        again = "start it again: tensor-pool up"
        if loaded.settings.driver.aeron_dir:
            again = f"start both again: tensor-pool media-driver --aeron-dir {aeron_dir}, then tensor-pool up --aeron-dir {aeron_dir}"
        raise MediaDriverTimeoutError(
            f"the stack has ended: the media driver of {aeron_dir} is gone, or took it for dead", code=error.code, hint=again
        )
    if isinstance(error, TensorPoolError):
        raise error
    if error is not None:
        raise click.ClickException(f"the SHM driver failed: {error}")
    if as_json:
        print_json({"event": "stopped"})


@click.command(epilog=example("tensor-pool down"))
@click.option("--stack", default=None, metavar="PATH", help="Runtime directory of the stack, or its stack.json.")
def down(stack: str | None) -> None:
    """Stop the running stack. Its clients are told."""
    with AdminClient(find_stack(stack, os.environ).admin_socket) as admin:
        admin.shutdown()


@click.command(name="media-driver", epilog=example("tensor-pool media-driver --aeron-dir /dev/shm/aeron-lab"))
@click.option("--aeron-dir", required=True, type=click.Path(file_okay=False), help="Its directory; it must not be in use.")
@click.option("--config", "path", type=click.Path(path_type=Path), default=None, help="TOML file; its section [media_driver] is used.")
@click.option("--json", "as_json", is_flag=True, help="Say what happens as JSON lines.")
def media_driver(aeron_dir: str, path: Path | None, as_json: bool) -> None:
    """Run a media driver by itself until Ctrl-C, for `tensor-pool up --aeron-dir` and other Aeron programs."""
    settings: MediaDriverSettings = load(StackSettings, path, os.environ).settings.media_driver

    def ready(directory: str) -> None:
        if as_json:
            print_json({"event": "ready", "aeron_dir": directory})
        else:
            click.echo(f"The media driver runs in {directory}. Ctrl-C ends it.", err=True)

    with ShutdownSignal() as shutdown:
        run_media_driver(aeron_dir, settings, stop=shutdown.event, on_ready=ready)
    if as_json:
        print_json({"event": "stopped"})

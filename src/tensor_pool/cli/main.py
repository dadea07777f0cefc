"""The entry point: which commands there are, and how an error ends."""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import click

from tensor_pool import __version__
from tensor_pool.cli.output import example, print_json
from tensor_pool.errors import ConfigError, TensorPoolError

EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
# modules that the base install leaves out, and the extra that brings them
EXTRAS: Final = {"mcap": "record", "google": "record", "crc32c": "record", "pyarrow": "record", "pyspark": "spark", "pandas": "spark"}


class Command(NamedTuple):
    """Where a command is, and its line in the list: known without importing it."""

    module: str
    attribute: str
    summary: str


COMMANDS: Final = {
    "up": Command("tensor_pool.cli.stack_commands", "up", "Start a stack: media driver, SHM driver, admin socket."),
    "down": Command("tensor_pool.cli.stack_commands", "down", "Stop the running stack."),
    "media-driver": Command("tensor_pool.cli.stack_commands", "media_driver", "Run a media driver by itself."),
    "publish": Command("tensor_pool.cli.stream_commands", "publish", "Publish a synthetic camera."),
    "tap": Command("tensor_pool.cli.stream_commands", "tap", "Read a stream and show frames, rate, loss and latency."),
    "ls": Command("tensor_pool.cli.stream_commands", "list_streams", "List the streams of the running stack."),
    "record": Command("tensor_pool.cli.record_command", "record", "Record streams to disk."),
    "config": Command("tensor_pool.cli.config_commands", "config", "Show or write the settings of a stack."),
}


class LazyGroup(click.Group):
    """Imports a command when it is used, so that `--help` and completion are quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(importlib.import_module(entry.module), entry.attribute)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean `tensor-pool {near[0]}`?" if near else "`tensor-pool --help` lists the commands"
            raise ConfigError(f"there is no command {args[0]!r}", source="command line", key="command", value=args[0], hint=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog=example("tensor-pool up &", "tensor-pool publish --name camera-1 &", "tensor-pool tap camera-1"),
)
@click.version_option(__version__, prog_name="tensor-pool")
@click.option("-v", "--verbose", is_flag=True, help="Log what happens inside, on stderr.")
def cli(verbose: bool) -> None:
    """Move camera frames and tensors between processes through shared memory."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.DEBUG if verbose else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )


def run(arguments: Sequence[str]) -> int:
    """Run a command line and say how it ended. Errors are words on stderr; a traceback is a bug of ours."""
    as_json = "--json" in arguments
    try:
        code = cli.main(args=list(arguments), prog_name="tensor-pool", standalone_mode=False)
        sys.stdout.flush()
    except TensorPoolError as error:
        return _fail(error.message, error.hint, EXIT_USAGE if isinstance(error, ConfigError) else EXIT_ERROR, error, as_json=as_json)
    except click.exceptions.NoArgsIsHelpError as error:
        # nothing was asked for: what there is to ask for is no error
        click.echo(error.format_message(), err=True)
        return EXIT_USAGE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "tensor-pool"
        return _fail(error.format_message(), f"`{path} --help` explains the options", EXIT_USAGE, error, as_json=as_json)
    except click.ClickException as error:
        return _fail(error.format_message(), "", error.exit_code, error, as_json=as_json)
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _abandon_stdout()
        return EXIT_ERROR
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        return _fail(f"{error.name} is not installed", f"pip install 'shm-tensor-pool[{extra}]'", EXIT_ERROR, error, as_json=as_json)
    return code if isinstance(code, int) else 0


def _fail(message: str, hint: str, code: int, error: Exception, *, as_json: bool) -> int:
    _say("error", message, "red")
    if hint:
        click.echo(err=True)
        _say("hint", hint, "cyan")
    if as_json:
        details = {
            name: str(value) for name in ("source", "key", "value", "path") if (value := getattr(error, name, None)) not in (None, "")
        }
        try:
            print_json({"event": "error", "type": type(error).__name__, "message": message, "hint": hint, "exit_code": code, **details})
        except BrokenPipeError:
            _abandon_stdout()
    return code


def _say(word: str, text: str, colour: str) -> None:
    # click drops colours where stderr is no terminal
    label = f"{word}:" if os.environ.get("NO_COLOR") else click.style(f"{word}:", fg=colour, bold=True)
    click.echo(f"{label} {text}", err=True)


def _abandon_stdout() -> None:
    """Whoever read our output is gone; without this the interpreter complains of it once more at its end."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(descriptor, sys.stdout.fileno())
    finally:
        os.close(descriptor)


def main(arguments: Sequence[str] | None = None) -> Any:
    """The `tensor-pool` command."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    main()

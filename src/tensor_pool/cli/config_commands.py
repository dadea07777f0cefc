"""`config show` and `config generate`: what a stack is told, and a file to tell it by."""

from __future__ import annotations

import os
from pathlib import Path

import click

from tensor_pool.cli.output import example, print_json, print_table
from tensor_pool.config import generate, load, show
from tensor_pool.errors import ConfigError
from tensor_pool.stack import StackSettings


@click.group(epilog=example("tensor-pool config generate --output stack.toml", "tensor-pool config show --config stack.toml"))
def config() -> None:
    """Show or write the settings of a stack."""


@config.command(
    name="show", epilog=example("tensor-pool config show --config stack.toml", "TENSOR_POOL_SHM__NAMESPACE=lab tensor-pool config show")
)
@click.option(
    "--config", "path", type=click.Path(path_type=Path), default=None, help="TOML file; without it defaults and environment alone."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document: a list of key, value (as TOML writes it) and origin.")
def show_settings(path: Path | None, as_json: bool) -> None:
    """Show every setting, its value, and where the value came from: default, file and line, or variable."""
    rows = [row._asdict() for row in show(load(StackSettings, path, os.environ))]
    if as_json:
        print_json(rows)
    else:
        print_table("settings", rows)


@config.command(name="generate", epilog=example("tensor-pool config generate --output stack.toml"))
@click.option("--output", type=click.Path(path_type=Path), default=None, help="File to write; it may not exist yet. Without it stdout.")
def generate_settings(output: Path | None) -> None:
    """Write a TOML file with every setting at its default and a comment on each."""
    text = generate(StackSettings)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(
            f"{output} exists already",
            source="command line",
            key="--output",
            value=str(output),
            hint="give another name, or remove it first",
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error.strerror}", source="command line", key="--output", value=str(output)) from error
    click.echo(f"wrote {output}", err=True)

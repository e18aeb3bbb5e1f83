"""The command `wayfare`."""

from __future__ import annotations

import sys

import typer

from wayfare.cli.compare import compare_command
from wayfare.cli.contacts import contacts_app
from wayfare.cli.data import data_app
from wayfare.cli.export import export_command
from wayfare.cli.field import field_app
from wayfare.cli.listings import presets_command, schemes_command
from wayfare.cli.paper import paper_command
from wayfare.cli.plan import plan_command
from wayfare.cli.report import report_command
from wayfare.cli.resume import resume_command
from wayfare.cli.run import run_command
from wayfare.cli.show import show_command
from wayfare.cli.sweep import sweep_command
from wayfare.cli.terminal import errors
from wayfare.cli.theory import theory_app
from wayfare.errors import InputError, UnavailableError, WayfareError
from wayfare.version import __version__

app = typer.Typer(
    name="wayfare",
    help="Federated learning for devices that move: compare methods on the same fleet, contacts and energy.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command("compare")(compare_command)
app.command("run")(run_command)
app.command("sweep")(sweep_command)
app.command("resume")(resume_command)
app.command("paper")(paper_command)
app.command("show")(show_command)
app.command("report")(report_command)
app.command("export")(export_command)
app.command("plan")(plan_command)
app.add_typer(theory_app, name="theory")
app.add_typer(contacts_app, name="contacts")
app.add_typer(data_app, name="data")
app.add_typer(field_app, name="field")
app.command("schemes")(schemes_command)
app.command("presets")(presets_command)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run a command; what went wrong is one message and an exit code: 2 for bad input, 1 for a run that failed."""
    try:
        app()
    except WayfareError as error:
        _say(str(error))
        sys.exit(2 if isinstance(error, InputError | UnavailableError) else 1)
    except MemoryError as error:
        _say(f"out of memory: {error or 'no more to be had'}")
        sys.exit(1)
    except BrokenPipeError:
        # Whoever read our output went away; there is nobody left to tell.
        sys.stderr.close()
        sys.exit(1)


def _say(message: str) -> None:
    errors.print(f"error: {message}", style="bold red", markup=False, highlight=False, soft_wrap=True)

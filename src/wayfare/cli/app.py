"""The command `wayfare`."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from wayfare.cli.contacts import contacts_app
from wayfare.cli.data import data_app
from wayfare.cli.field import field_app
from wayfare.cli.finished import export_command, report_command, show_command
from wayfare.cli.listings import presets_command, schemes_command
from wayfare.cli.paper import paper_command
from wayfare.cli.plan import plan_command
from wayfare.cli.runs import compare_command, resume_command, run_command
from wayfare.cli.sweep import sweep_command
from wayfare.cli.terminal import ReadingBar, errors
from wayfare.cli.theory import theory_app
from wayfare.cli.words import error_text
from wayfare.errors import InputError, ScenarioError, UnavailableError, WayfareError
from wayfare.progress import listening
from wayfare.version import __version__


class _ReportsInvalidOptions(TyperGroup):
    """Report invalid options like invalid fields: name, value and rule."""

    def invoke(self, ctx: Any) -> Any:
        bar = ReadingBar()
        try:
            with listening(bar):
                return super().invoke(ctx)
        except typer.BadParameter as error:
            raise (_invalid_option(error) or error) from None
        except WayfareError:
            raise
        except Exception as error:
            raise (None if ctx.params["debug"] else _in_own_code(error)) or error from None
        finally:
            bar.stop()


def _invalid_option(error: typer.BadParameter) -> ScenarioError | None:
    """None if typer's own message already names the value, as it does for choices."""
    if error.param is None or not isinstance(error.__cause__, ValidationError):
        return None
    problem = error.__cause__.errors(include_url=False)[0]
    value, rule = problem["input"], problem["msg"]
    if repr(value) in rule:
        return None
    # Show numbers without quotes, as the user typed them.
    with suppress(ValueError, TypeError):
        value = json.loads(value)
    return ScenarioError(max(error.param.opts, key=len), value, rule[0].lower() + rule[1:])


def _in_own_code(error: Exception) -> InputError | None:
    """An error in the user's own network, loss or method; None if it is Wayfare's."""
    if "wayfare.methods" not in sys.modules:
        return None
    from wayfare.methods.from_file import own_error

    found = own_error(error)
    return found and InputError(f"{found} (`wayfare --debug ...` prints the traceback)")


app = typer.Typer(
    name="wayfare",
    cls=_ReportsInvalidOptions,
    help="Federated learning for moving devices: compare methods on the same fleet, contacts and energy budget.",
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
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    debug: bool = typer.Option(False, "--debug", help="Print the traceback of an error in your own code."),
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run a command. An error prints one message; the exit code is 2 for invalid input and 1 for a failed run."""
    try:
        app()
    except WayfareError as error:
        _print_error(error_text(error))
        sys.exit(2 if isinstance(error, InputError | UnavailableError) else 1)
    except MemoryError as error:
        _print_error(f"out of memory: {error}" if str(error) else "out of memory")
        sys.exit(1)
    except BrokenPipeError:
        # The reader of our output has closed the pipe; writing a message would fail again.
        sys.stderr.close()
        sys.exit(1)


def _print_error(message: str) -> None:
    errors.print(f"error: {message}", style="bold red", markup=False, highlight=False, soft_wrap=True)

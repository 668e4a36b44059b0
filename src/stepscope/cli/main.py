"""`stepscope`: the list of commands, and the one place that catches our errors and exits.

Exit codes: 0 done, 1 a check said no, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

from typing import Annotated

import typer

import stepscope
from stepscope.cli import (
    capture,
    capture_recipe,
    compare,
    cost,
    hypotheses,
    join,
    predict,
    report,
    retime,
    search,
    serve,
    simulate,
    sweep,
    whatif,
)
from stepscope.errors import BadInput, CheckFailed

_INTERRUPTED = 130

app = typer.Typer(
    name="stepscope",
    help="Where an LLM engine step's time went, as far as the evidence goes.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

# every command of the program, in the order in which help shows them
app.command("explain")(report.explain)
app.command("check")(report.check)
app.command("steps")(report.steps)
app.command("query")(report.query)
app.command("capture")(capture_recipe.capture)
app.command("import")(capture.import_)
app.command("cut")(capture.cut)
app.command("compare")(compare.compare)
app.command("export")(compare.export)
app.command("hypotheses")(hypotheses.hypotheses)
app.command("retime")(retime.retime)
app.command("serve")(serve.serve)
app.command("metrics")(join.metrics)
app.command("chunks")(join.chunks)
app.command("predict")(predict.predict)
app.command("gemm")(predict.gemm)
app.command("history")(predict.history)
app.command("crossover")(cost.crossover)
app.command("models")(predict.models)
app.command("hardware")(cost.hardware)
app.command("probe")(cost.probe)
app.command("simulate")(simulate.simulate)
app.command("calibrate")(whatif.calibrate)
app.command("whatif")(whatif.whatif)
app.command("search")(search.search)
app.add_typer(sweep.app, name="sweep")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stepscope {stepscope.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    del version


def main() -> None:
    """Run the program."""
    try:
        app()
    except BadInput as error:
        _fail(error, 2)
    except CheckFailed as error:
        _fail(error, 1)
    except OSError as error:
        where, reason = error.filename or "a file", error.strerror or str(error)
        _fail(f"{where}: {reason}. Check the path, its permissions and the space there.", 2)
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # typer has caught the KeyboardInterrupt
            _fail("interrupted; nothing was left half-written", _INTERRUPTED)
        raise


def _fail(error: object, code: int) -> None:
    typer.echo("stepscope: " + " ".join(str(error).splitlines()), err=True)
    raise SystemExit(code)


if __name__ == "__main__":
    main()

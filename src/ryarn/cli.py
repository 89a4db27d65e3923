"""The command line: parse, load the config, call one stage. Nothing heavy is imported before."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from ryarn.errors import SelfTestError, TrainingError, UserError
from ryarn.options import Overrides, RecipeFile, RemoteCode
from ryarn.trust import trusting

app = typer.Typer(
    help="Randomized YaRN: teach a language model to reason over long contexts from short rows.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # brackets in help are brackets
    pretty_exceptions_enable=False,
)


@app.command()
def train(
    recipe: RecipeFile,
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint of the run folder.")
    ] = False,
    trust_remote_code: RemoteCode = False,
) -> None:
    """Train a LoRA adapter on short rows, under one method.

    Example: ryarn train recipes/smollm2-babilong.yaml method.name=lora output=runs/lora
    """
    from ryarn.recipe import load_recipe

    checked = load_recipe(recipe, overrides or [])
    from ryarn.train import train as run

    adapter = run(checked, resume=resume)
    from accelerate import PartialState

    if PartialState().is_main_process:
        typer.echo(f"adapter in {adapter}; next: ryarn evaluate {checked.output / 'recipe.yaml'}")


@app.command()
def evaluate(
    recipe: RecipeFile, overrides: Overrides = None, trust_remote_code: RemoteCode = False
) -> None:
    """Answer and score the recipe's evaluation rows.

    A killed run goes on where it was.

    Example: ryarn evaluate recipes/smollm2-babilong.yaml method.name=lora output=runs/lora
    """
    from ryarn.recipe import load_recipe

    checked = load_recipe(recipe, overrides or [])
    from ryarn.evaluate import evaluate as run
    from ryarn.evaluate import failures

    folder = run(checked)
    from rich.console import Console

    from ryarn.report.results import build_report
    from ryarn.report.stage import load_runs
    from ryarn.report.tables import one_run

    Console(markup=False).print(one_run(build_report(load_runs([checked.output]))))
    typer.echo(f"scores in {checked.output}; next: ryarn report {checked.output}")
    failed = failures(folder)
    if failed is not None:
        typer.echo(f"ryarn: {failed}", err=True)
        raise typer.Exit(1)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders to set side by side.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the report.")] = Path("report"),
    reference: Annotated[
        str | None,
        typer.Option(
            help="Method that the others are tested against [randomized-yarn, or the last]."
        ),
    ] = None,
) -> None:
    """Compare evaluated runs: tables, figure, HTML page.

    Example: ryarn report runs/lora runs/trained-yarn runs/randomized-yarn --out report
    """
    from rich.console import Console

    from ryarn.report.stage import report as run
    from ryarn.report.tables import terminal

    console = Console(markup=False)
    for table in terminal(run(runs, out, reference)):
        console.print(table)
    typer.echo(f"report in {out}; open {out / 'report.html'}")


@app.command()
def compare(
    recipe: Annotated[
        Path, typer.Argument(help="Grid recipe, a YAML file.", metavar="RECIPE.yaml")
    ],
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the cells, their tokens and time; run nothing.")
    ] = False,
    processes: Annotated[
        int | None, typer.Option(help="Worker processes [the recipe's, or one a core].")
    ] = None,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Rehearse it: random weights, short rows, small data.")
    ] = False,
) -> None:
    """Train, evaluate and report a grid of methods, seeds and tasks.

    A killed grid goes on where it was: finished cells are kept.

    Example: ryarn compare recipes/demo.yaml --dry-run
    """
    from ryarn.compare.grid import load_grid

    if processes is not None and processes < 1:
        raise UserError(f"--processes {processes}: give at least 1")
    grid = load_grid(recipe, overrides or [])
    if tiny:
        from ryarn.paper.rehearsal import rehearse

        grid = rehearse(grid)
    if dry_run:
        from rich.console import Console

        from ryarn.compare.forecast import forecast, table

        seen = forecast(grid, processes=processes)
        Console(markup=False).print(table(seen))
        typer.echo("\n".join(["", *seen.notes]))
        return
    from ryarn.compare.stage import compare as run

    try:
        outcome = run(grid, processes=processes)
    except KeyboardInterrupt:
        typer.echo("ryarn: stopped; the same command goes on where it was", err=True)
        raise typer.Exit(130) from None
    for name, reason in outcome.failed.items():
        typer.echo(f"failed: {name}: {reason}", err=True)
    if outcome.report is not None:
        from rich.console import Console

        from ryarn.report.tables import grid_terminal

        Console(markup=False).print(grid_terminal(outcome.tasks))
        typer.echo(f"report in {outcome.report}; open {outcome.report / 'report.html'}")
    if outcome.failed:
        raise typer.Exit(1)


@app.command()
def tune(
    recipe: Annotated[
        Path, typer.Argument(help="Recipe with a tune section.", metavar="RECIPE.yaml")
    ],
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the first settings and the time; run nothing.")
    ] = False,
) -> None:
    """Choose hyper-parameters on held-out rows.

    A killed search goes on where it was: settled trials are kept.

    Example: ryarn tune recipes/tune-miniature.yaml --dry-run
    """
    from ryarn.tune.search import load_tune

    checked = load_tune(recipe, overrides or [])
    from rich.console import Console

    if dry_run:
        from ryarn.tune.outlook import forecast, forecast_table

        seen = forecast(checked)
        Console(markup=False).print(forecast_table(checked, seen))
        typer.echo("\n".join(["", *seen.notes]))
        return
    from ryarn.tune.stage import tune as run
    from ryarn.tune.tuned import sentences, terminal

    try:
        outcome = run(checked)
    except KeyboardInterrupt:
        typer.echo("ryarn: stopped; the same command goes on where it was", err=True)
        raise typer.Exit(130) from None
    for name, reason in outcome.failed.items():
        typer.echo(f"failed: {name}: {reason}", err=True)
    for table in terminal(checked, outcome):
        Console(markup=False).print(table, "")
    typer.echo("\n".join(sentences(checked, outcome)))
    typer.echo(f"chosen in {checked.output}; next: ryarn train {checked.output / 'tuned.yaml'}")
    if outcome.failed:
        raise typer.Exit(1)


@app.command()
def data(
    task: Annotated[
        str,
        typer.Argument(help="babilong, mrcr, longbench-v2, conflicts, lookalikes or jsonl."),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="The task's settings, e.g. lengths=[512,1024]", metavar="KEY=VALUE ..."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="JSONL file to write.")] = Path("rows.jsonl"),
    model: Annotated[
        str, typer.Option(help="Model whose tokenizer counts the tokens.")
    ] = "smollm2",
    split: Annotated[str, typer.Option(help="train, held-out or test.")] = "train",
    window: Annotated[
        int | None, typer.Option(help="Name the rows that don't fit into so many tokens.")
    ] = None,
    trust_remote_code: RemoteCode = False,
) -> None:
    """Write a task's rows to a JSONL file.

    The file is in TRL's prompt-completion format, with our columns beside it.

    Example: ryarn data babilong questions=[qa3] lengths=[1024,4096] rows=100 --split test
    """
    from ryarn.data import describe, task_config, write_rows

    if window is not None and window < 1:
        raise UserError(f"--window {window}: give at least 1")
    config = task_config(task, settings or [])
    from ryarn.models import load_tokenizer
    from ryarn.recipe import ModelConfig

    summary = write_rows(config, load_tokenizer(ModelConfig(name=model)), split, out, window)
    typer.echo("\n".join(describe(summary, getattr(config, "count_with", None), window)))


@app.command()
def positions(
    recipe: RecipeFile,
    overrides: Overrides = None,
    length: Annotated[
        int | None, typer.Option(help="Tokens of the row [the recipe's train.max_length].")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Draw a PNG (the paper's figure 1), too.")
    ] = None,
) -> None:
    """Show what a method does to the positions of one row.

    Example: ryarn positions recipes/smollm2-babilong.yaml --out positions.png
    """
    from ryarn.preview import preview, to_text
    from ryarn.recipe import load_recipe, recipe_method

    checked = load_recipe(recipe, overrides or [])
    if length is None:
        length = checked.train.max_length
    rows = preview(recipe_method(checked.method), length, seed=checked.seed)
    typer.echo(to_text(rows))
    if out is not None:
        from ryarn.report.plots import plot_positions

        plot_positions(rows, out)
        typer.echo(f"figure in {out}")


@app.command()
def export(
    run: Annotated[
        Path | None, typer.Argument(help="Run folder, or an adapter folder with its ryarn.json.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="Folder to make; with --gguf-from, the file.")
    ] = None,
    factor: Annotated[
        float | None, typer.Option(help="YaRN factor s' to serve with, at least s [the run's].")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="Base model, if it is not where it was in training.")
    ] = None,
    unmerged: Annotated[
        bool, typer.Option("--unmerged", help="Keep the adapter apart, beside a base with YaRN.")
    ] = False,
    gguf: Annotated[
        str | None, typer.Option(help="Write GGUF for llama.cpp: f32, f16 or q8_0.")
    ] = None,
    gguf_from: Annotated[
        Path | None, typer.Option(help="Set YaRN in a copy of this GGUF file; needs no run.")
    ] = None,
    trust_remote_code: RemoteCode = False,
) -> None:
    """Write what was trained in a form that runs without ryarn, and check that it is the same.

    Example: ryarn export runs/lora --to exported
    """
    if to is None:
        raise UserError("--to is missing: name the folder (with --gguf-from, the file) to make")
    if gguf_from is not None:
        if factor is None or run is not None or base or unmerged or gguf:
            raise UserError("--gguf-from takes --factor and --to, and nothing else")
        from ryarn.export import set_yarn_keys

        keys = set_yarn_keys(gguf_from, factor, to)
        typer.echo(
            f"{keys.path}: YaRN factor {factor:g} on {keys.original_length} tokens, context "
            f"{keys.window}; no weight was changed, and none was trained for it"
        )
        return
    if run is None:
        raise UserError("name the run folder to export, or give --gguf-from a GGUF file")
    if unmerged and gguf:
        raise UserError("--unmerged and --gguf exclude each other: GGUF files are merged")
    from ryarn.export import export as write
    from ryarn.export import report_lines

    form = gguf or ("unmerged" if unmerged else "merged")
    for line in report_lines(write(run, to, factor=factor, base=base, form=form)):
        typer.echo(line)


@app.command()
def plan(
    recipe: RecipeFile,
    overrides: Overrides = None,
    target: Annotated[int | None, typer.Option(help="Length to reach, in tokens.")] = None,
    memory: Annotated[str | None, typer.Option(help="An accelerator's, e.g. 24GB.")] = None,
    probe: Annotated[bool, typer.Option("--probe", help="Time two steps of the model.")] = False,
    trust_remote_code: RemoteCode = False,
) -> None:
    """Say what a recipe will do, before any model is loaded.

    Example: ryarn plan recipes/smollm2-babilong.yaml --target 16384
    """
    from ryarn.plan.stage import run

    raise typer.Exit(run(recipe, overrides or [], target=target, memory=memory, probe=probe))


@app.command()
def doctor(
    model: Annotated[
        str,
        typer.Argument(
            help="Hub id, model folder, tiny:<family>, adapter folder, run folder or export.",
            metavar="MODEL_OR_ADAPTER",
        ),
    ],
    trust_remote_code: RemoteCode = False,
) -> None:
    """Say which RoPE is live in a model, and whether its config says the same.

    Example: ryarn doctor tiny:olmo3
    """
    from rich.console import Console

    from ryarn.doctor.diagnosis import lines, table
    from ryarn.doctor.stage import doctor as run

    found = run(model)
    Console(markup=False).print(table(found))
    typer.echo("\n".join(lines(found)))
    if not found.passed:
        raise typer.Exit(1)


def main() -> None:
    """Run the command line.

    Bad input and a disk that refuses are one sentence on stderr and exit code 2; a model that fails
    the self-test and a training that went wrong are one, too, and exit code 1.
    """
    # The libraries' notes to each other about names that will go.
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        with trusting(False):
            app()
    except (UserError, SelfTestError, TrainingError) as error:
        typer.echo(f"ryarn: {error}", err=True)
        sys.exit(2 if isinstance(error, UserError) else 1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(f"ryarn: {where}{error.strerror or error}", err=True)
        sys.exit(2)

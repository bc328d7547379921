"""Write the page: one HTML file that needs no network, no other file and no script."""

from collections.abc import Sequence
from pathlib import Path

from tfdist import __version__
from tfdist._utils.write_files import write_output, write_whole
from tfdist.diagnostics.report.comparison import config_differences, names_of, results_side_by_side
from tfdist.diagnostics.report.confusion_matrix_and_mistakes import confusion, mistakes
from tfdist.diagnostics.report.learning_and_speed_charts import learning_charts, speed_charts
from tfdist.diagnostics.report.markup import escape, section
from tfdist.diagnostics.report.run_facts import RunFacts, read_run
from tfdist.diagnostics.report.sections import (
    configuration,
    headline,
    history,
    places,
    recorded_steps,
    reproduction,
    title,
    warnings,
    where_time_went,
)

PAGE, COMPARISON = "report.html", "comparison.html"  # in the folder of the (first) run
_STYLE = Path(__file__).with_name("style.css")
# The page loads nothing, whatever a name in it says.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_page(
    folders: Sequence[Path], output: Path | None = None, *, places: Sequence[str | None] = (None, None)
) -> Path:
    """Write the page about one run, or about two, and return its path.

    Args:
        folders: The folders of the runs.
        output: The file; None for `report.html` or `comparison.html` in the first folder.
        places: The address of each run whose folder is a copy.

    Raises:
        ConfigError: A folder is that of no run.
        DataError: A file of a run is damaged.
        StorageError: The page cannot be written.
    """
    runs = [read_run(folder, place) for folder, place in zip(folders, places, strict=False)]
    text = run_page(runs[0]) if len(runs) == 1 else comparison_page(runs)
    if output:
        write_output(output, text.encode())
        return output
    path = folders[0] / (PAGE if len(runs) == 1 else COMPARISON)
    write_whole(path, text.encode())
    return path


def run_page(facts: RunFacts) -> str:
    """Return the page about a run."""
    runs, names = [facts], names_of([facts])
    body = (
        f'<div class="head">{headline(facts)}</div>'
        + section("Learning", _grid(learning_charts(runs, names)))
        + section("Speed", _grid(speed_charts(runs, names)))
        + '<div class="columns">'
        + section("Where time went", where_time_went(runs, names))
        + section("What happened", history(facts))
        + "</div>"
        + section("Recorded steps", recorded_steps(facts))
        + section("Warnings", warnings(facts))
        + '<div class="columns">'
        + section("Answers for the test images", confusion(facts.answers))
        + section("Surest mistakes", mistakes(facts.answers))
        + "</div>"
        + section("What ran where", places(facts))
        + section("Do it again", reproduction(facts))
        + section("Configuration", configuration(facts))
    )
    return _document(title(facts), names[0], body)


def comparison_page(runs: Sequence[RunFacts]) -> str:
    """Return the page about two runs."""
    names = names_of(runs)
    first, second = runs
    pairs = list(zip(runs, names, strict=True))
    body = (
        section("Results", results_side_by_side(first, second, names))
        + section("Differences of the configs", config_differences(first, second, names))
        + section("Learning", _grid(learning_charts(runs, names)))
        + section("Speed", _grid(speed_charts(runs, names)))
        + section("Where time went", where_time_went(runs, names))
        + '<div class="columns">'
        + "".join(section(f"Answers of {name}", confusion(facts.answers)) for facts, name in pairs)
        + "</div>"
        + "".join(section(f"Warnings of {name}", warnings(facts)) for facts, name in pairs)
        + "".join(section(f"What ran where: {name}", places(facts)) for facts, name in pairs)
        + "".join(section(f"Do {name} again", reproduction(facts)) for facts, name in pairs)
    )
    return _document(f"{names[0]} and {names[1]}", "two runs compared", body)


def _grid(charts: str) -> str:
    return f'<div class="charts">{charts}</div>' if charts else ""


def _document(heading: str, subtitle: str, body: str) -> str:
    style = _STYLE.read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(heading)}: {escape(subtitle)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header><p>{escape(subtitle)}</p><h1>{escape(heading)}</h1></header>\n<main>\n{body}</main>\n"
        f"<footer>Written by tfdist {escape(__version__)}.</footer>\n</body>\n</html>\n"
    )

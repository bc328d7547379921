"""Show the results of a run at its end, and write the page about it."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tfdist._utils.check_and_expand_paths import exists
from tfdist.cli._exit_status import keep_exit_status
from tfdist.errors import TfdistError
from tfdist.launcher.run_events import FILE

_LABEL_WIDTH = 15


@contextlib.contextmanager
def page_written(root: Path, write: Callable[[], object]) -> Iterator[None]:
    """Write the page about the run in a folder after the block, also where the run has failed.

    A page that cannot be written is worth a warning, and no other exit status.
    """
    try:
        yield
    except TfdistError as error:
        keep_exit_status(error)
        raise
    finally:
        if exists(root / FILE):
            try:
                write()
            except TfdistError as error:
                print(f"tfdist: WARNING: there is no new page about the run: {error}", file=sys.stderr)


def print_results(rows: Sequence[tuple[str, str]], attention: str = "") -> None:
    """Print rows of a label and a text: on a terminal in a frame, in which a long path takes several lines.

    Args:
        rows: The rows; those without a text are left out. The first one is the result.
        attention: What to say before.
    """
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    rows = [row for row in rows if row[1]]
    console = Console(highlight=False, markup=False, emoji=False)
    if attention:
        console.print(attention, style="bold yellow", soft_wrap=True)
    if not console.is_terminal:
        for label, text in rows:
            console.print(f"{label:<{_LABEL_WIDTH}}{text}", soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for index, (label, text) in enumerate(rows):
        grid.add_row(label, Text(text, style="" if index else "bold"))
    console.print(Panel(grid, title="done", title_align="left", expand=False))

"""Write one HTML page about a run: results, curves, faults, where time went; of two runs, side by side.

    tfdist report runs/ps2w-20260101-120000
    tfdist report runs/one runs/two [--output FILE]

A run may be done, have failed, or still run; a run of `tfdist launch` has fewer sections.
"""

from collections.abc import Sequence

from tfdist._utils.files import local_path
from tfdist.diagnostics.report.page import write_page
from tfdist.errors import ConfigError

__all__ = ["main"]


def main(command: Sequence[str], output: str | None = None) -> None:
    """Write the page, and print where it is."""
    if not 1 <= len(command) <= 2:
        remedy = "Name them: tfdist report runs/NAME"
        raise ConfigError(
            "command line",
            expected="the folders of one or two runs",
            received=str(len(command)),
            remedy=remedy,
        )
    folders = [local_path(word, "command line") for word in command]
    path = write_page(folders, None if output is None else local_path(output, "--output"))
    print(f"wrote {path}")


if __name__ == "__main__":
    from absl import flags

    from tfdist.cli._run_command import run

    flags.DEFINE_string(
        "output",
        None,
        "The file to write. Without it, report.html or comparison.html in the first run's folder.",
        short_name="o",
    )
    run(main, takes_words=True)

"""Write one HTML page about a run: results, curves, faults, where time went; of two runs, side by side.

    tfdist report runs/ps2w-20260101-120000
    tfdist report runs/one runs/two [--output FILE]

A run may be done, have failed, or still run; a run of `tfdist launch` has fewer sections. It may be in an
object store, such as gs://bucket/runs/x.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from tfdist._utils.check_and_expand_paths import expanded_path, local_path, path_or_address
from tfdist._utils.write_files import temporary_folder
from tfdist.cli._flags_from_signature import Flag, run
from tfdist.cli._load_tensorflow_quietly import load_tensorflow_quietly
from tfdist.diagnostics.report.page import write_page
from tfdist.errors import ConfigError, DataError


def main(
    command: Sequence[str],
    output: Annotated[
        str | None,
        Flag(
            "The file to write. Without it, report.html or comparison.html in the first run's folder.",
            short_name="o",
        ),
    ] = None,
) -> None:
    """Write the page, and print where it is."""
    if not 1 <= len(command) <= 2:
        remedy = "Name them: tfdist report runs/NAME"
        raise ConfigError(
            "command line",
            expected="the folders of one or two runs",
            received=str(len(command)),
            remedy=remedy,
        )
    places = [path_or_address(word, "command line") for word in command]
    written = None if output is None else local_path(output, "--output")
    with contextlib.ExitStack() as stack:
        folders = [stack.enter_context(_folder_of(place)) for place in places]
        addresses = [place if isinstance(place, str) else None for place in places]
        page = write_page(folders, written, places=addresses)
        if written is None and addresses[0] is not None:
            from tfdist.trainer.remote_run_folder import put_page  # loads TensorFlow for its file systems

            print(f"wrote {put_page(page, addresses[0])}")
        else:
            print(f"wrote {page}")


@contextlib.contextmanager
def _folder_of(place: Path | str) -> Iterator[Path]:
    """Yield the folder of a run; of a run in an object store, a copy of what the page is made of."""
    if isinstance(place, Path):
        yield expanded_path(place, "command line")
        return
    load_tensorflow_quietly()
    from tfdist.trainer.remote_run_folder import fetch_report  # the same

    with temporary_folder("tfdist-") as copy:
        fetch_report(place, Path(copy))
        try:
            yield Path(copy)
        except DataError as error:
            raise DataError(error.where.replace(copy, place), error.problem, remedy=error.remedy) from None


if __name__ == "__main__":
    run(main, takes_words=True)

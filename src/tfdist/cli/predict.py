"""Ask an exported model about images: label and score of each, and the accuracy where labels are known.

    tfdist predict --model runs/ps2w --input digits
    tfdist predict --model runs/ps2w --input photos --output answers.csv --grid answers.png

The model is a run's folder, an export in it, or a .keras or .tflite file there. The input is an image, a
folder of images (in folders named after their classes, where these are known), an .npz file with x and
perhaps y and key, a folder of TFRecord files, or the name of a data set, whose test images are taken. Both
may be addresses such as gs://bucket/runs/ps2w.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tfdist._utils.check_and_expand_paths import exists, expanded_path, is_folder, local_path, path_or_address
from tfdist._utils.write_files import is_stream, storage_errors
from tfdist.cli._flags_from_signature import Flag, run
from tfdist.cli._load_tensorflow_quietly import load_tensorflow_quietly
from tfdist.errors import ConfigError, StorageError
from tfdist.export.export_folder import find_export

if TYPE_CHECKING:
    from tfdist.export.write_predictions import Summary


def main(
    model: Annotated[str | None, Flag("A run's folder, an export in it, or a .keras or .tflite file there.")],
    input: Annotated[str | None, Flag("An image, a folder of images, an .npz file, or a data set's name.")],
    output: Annotated[str, Flag("The file to write; - is standard output.")] = "-",
    format: Annotated[
        Literal["jsonl", "csv"] | None, Flag("The format; by default, what --output ends in, or JSON lines.")
    ] = None,
    grid: Annotated[
        str | None, Flag("The PNG to draw up to 64 images and their answers in, wrong answers first.")
    ] = None,
    batch_size: Annotated[int, Flag("How many images the model predicts at once.", least=1)] = 256,
) -> None:
    """Write the answer for each image to standard output or a file, and print a summary."""
    if not model:
        raise ConfigError("--model", "is missing", remedy="Name a run's folder: --model runs/ps2w")
    if not input:
        raise ConfigError("--input", "is missing", remedy="Name images or a data set: --input digits")
    exported = find_export(_local_model(model))
    _check_input(input)
    target = None if output == "-" else _writable(output, "--output")
    grid_path = None if grid is None else _writable(grid, "--grid")
    if grid_path is not None and grid_path.suffix != ".png":
        raise ConfigError("--grid", expected="a name that ends in .png", received=f"'{grid}'")
    form = format or ("csv" if output.endswith(".csv") else "jsonl")
    load_tensorflow_quietly()

    from tfdist.export.write_predictions import answer  # loads TensorFlow, after the checks of the flags

    summary = answer(exported, input, batch_size=batch_size, output=target, form=form, grid=grid_path)
    _print_summary(summary, [path for path in (target, grid_path) if path is not None])


def _local_model(model: str) -> str | Path:
    """Return the path of a model; a model in an object store is copied."""
    place = path_or_address(model, "--model")
    if isinstance(place, Path):
        return model
    load_tensorflow_quietly()
    from tfdist.export.download_export import fetch_export  # loads TensorFlow, whose file systems it uses

    return fetch_export(place)


def _check_input(source: str) -> None:
    """Raise at a path that does not exist; a name without a slash or a suffix may be a data set."""
    path = path_or_address(source, "--input")
    if isinstance(path, str) or exists(expanded_path(path, "--input")):
        return
    is_path = source.startswith(("/", "./", "../", "~")) or "." in path.name
    # tensorflow-datasets has names with a slash, such as imagenet_resized/32x32, and versions after a colon.
    if is_path and ":" not in source:
        remedy = "Name an image, a folder of images, an .npz file or a data set"
        raise ConfigError("--input", f"{source} does not exist, or may not be read", remedy=remedy)


def _writable(name: str, flag: str) -> Path:
    path = local_path(name, flag)
    folder = path.parent
    if not is_folder(folder):
        raise ConfigError(flag, f"there is no folder {folder}", remedy="Make it first")
    if is_folder(path):
        raise ConfigError(flag, expected="a file", received=f"the folder {path}")
    with storage_errors(path):
        is_renamed = not is_stream(path)
    if is_renamed and not os.access(folder, os.W_OK):
        raise StorageError(
            f"{flag} {name}", "cannot be written: Permission denied", remedy="Name another folder"
        )
    return path


def _print_summary(summary: "Summary", written: list[Path]) -> None:
    # On standard error, because a program may read the answers from standard output.
    lines = [f"images    {summary.images}"]
    if summary.accuracy is not None:
        lines += [f"accuracy  {summary.accuracy:.4f} on {summary.known} whose label is known"]
    print("\n".join([*lines, *(f"written   {path}" for path in written)]), file=sys.stderr)


if __name__ == "__main__":
    run(main)

"""Put the config of a job into environment variables, and write it to a file in the container."""

from collections.abc import Mapping
from pathlib import Path

from tfdist.engines.job_description import Job
from tfdist.errors import ConfigError

NAME = "TFDIST_CONFIG_NAME"  # of the config file, for messages
_CONFIG = "TFDIST_CONFIG_"
_PIECE = 512  # bytes of a variable, SageMaker's limit
MOST_BYTES = 60 * _PIECE  # SageMaker and Vertex AI take 100 variables


def config_variables(job: Job) -> dict[str, str]:
    """Return variables that contain the text of a job's config file; none for a script.

    Raises:
        ConfigError: It is too long, or cannot be read.
    """
    path, text = job.config, job.config_text
    if path is None or text is None:
        return {}
    if (size := len(text.encode())) > MOST_BYTES:
        expected, received = f"at most {MOST_BYTES} bytes", str(size)
        remedy = "Put it into the image, and submit the command: -- python -m tfdist.train --config FILE"
        raise ConfigError(str(path), expected=expected, received=received, remedy=remedy)
    pieces = [""]
    for character in text:
        if len((pieces[-1] + character).encode()) > _PIECE:
            pieces.append("")
        pieces[-1] += character
    return {NAME: path.name, **{f"{_CONFIG}{i}": piece for i, piece in enumerate(pieces)}}


def write_config(folder: Path, environ: Mapping[str, str]) -> Path | None:
    """Write the config of a container's variables to a file in a folder; return None if there is none."""
    if not (name := environ.get(NAME)):
        return None
    pieces: list[str] = []
    while (piece := environ.get(f"{_CONFIG}{len(pieces)}")) is not None:
        pieces.append(piece)
    path = folder / Path(name).name
    path.write_text("".join(pieces), "utf-8")
    return path

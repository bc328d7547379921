"""Describe the parts of a run that the doctor tries, one record each; this module loads no TensorFlow."""

import msgspec

from tfdist.trainer.model_and_replica_sizes import ModelSizes

PARTS = ("strategy", "data", "model", "speed")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What was found about a part of a run, or the problem and its remedy.

    Attributes:
        name: One of PARTS.
        found: What was found, in words.
        problem: What is wrong; empty if nothing is.
        remedy: What to do about the problem.
        fingerprint: Of data: the digits that identify their contents.
        folder: Of data: where they are, prepared.
        sizes: Of a model: what determines the memory that training needs.
        examples_per_second: Of speed: how fast one process trains.
        batch_size: Of speed: the examples in each of its steps.
    """

    name: str
    found: str = ""
    problem: str = ""
    remedy: str = ""
    fingerprint: str = ""
    folder: str = ""
    sizes: ModelSizes | None = None
    examples_per_second: float = 0.0
    batch_size: int = 0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the process that tries the parts is asked for.

    Attributes:
        config: The config file.
        changes: Values that replace those of the file.
        task: The task that this host runs, if the user named it.
        run_dir: The folder of the run, if the user named it.
        output: The file to which a line of JSON is added for each part.
        measures_speed: Whether some steps are trained, too.
    """

    config: str
    changes: tuple[str, ...] = ()
    task: str | None = None
    run_dir: str | None = None
    output: str = ""
    measures_speed: bool = False

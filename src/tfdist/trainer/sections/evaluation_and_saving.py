"""The sections `evaluation`, `checkpoint`, `summaries` and `export`: what a run writes, and when."""

from typing import Annotated, Literal

import msgspec

from tfdist._utils.shared_config_types import Positive, doc


class EvaluationSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set when the model is evaluated on the test data, besides at the end."""

    every: Annotated[Positive | None, doc("Steps between two evaluations; an epoch's by default.")] = None
    batches: Annotated[
        Positive | None, doc("How many batches of the test data are used; all by default.")
    ] = None


class CheckpointSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set when checkpoints are saved, besides at the end, and whether a run resumes from them."""

    every: Annotated[Positive | None, doc("Steps between two checkpoints; an epoch's by default.")] = None
    keep: Annotated[
        Positive, doc("How many of the newest checkpoints are kept, besides the best that was evaluated.")
    ] = 3
    background: Annotated[
        bool, doc("Whether training continues while a checkpoint is written; see reliability.md.")
    ] = False
    resume: Annotated[
        Literal["auto", "never"],
        doc(
            "auto resumes from the newest checkpoint of the run; with never, one of an earlier command is an"
            " error."
        ),
    ] = "auto"


class SummariesSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set what is written for TensorBoard."""

    every: Annotated[Positive, doc("Steps between two points of the curves.")] = 50


class ExportSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Select the formats of the exported model, besides the SavedModel."""

    formats: Annotated[tuple[Literal["keras", "tflite"], ...], doc("More formats to write.")] = ()

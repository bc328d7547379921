"""The section `train`: how the model is trained, and for how long."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tfdist._utils.shared_config_types import AboveZero, Named, Positive, doc


class TrainSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set how the model is trained, and for how long."""

    epochs: Annotated[Positive, doc("How many times the run goes through all training examples.")] = 1
    steps: Annotated[Positive | None, doc("Train for so many steps instead of for epochs.")] = None
    until_accuracy: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        doc("End after the first evaluation with at least this test accuracy, such as 0.99."),
    ] = None
    optimizer: Annotated[
        Named | None,
        doc(
            "Keras's name, momentum, nesterov, or my_package.my_module:function; with arguments, {name:"
            " adamw, weight_decay: 0.01}. By default the compiled model's, or adam."
        ),
    ] = None
    learning_rate: Annotated[
        AboveZero | None, doc("By default that of the compiled model's optimizer, or 0.001.")
    ] = None
    schedule: Annotated[
        Literal["constant", "cosine"] | None,
        doc(
            "The schedule of the learning rate: constant, the default, or cosine, which lowers it to 0 over"
            " the run."
        ),
    ] = None
    warmup: Annotated[
        float, doc("The share of the run in which the learning rate rises to its value.", ge=0, lt=1)
    ] = 0.0
    loss: Annotated[
        Named | None,
        doc(
            "Keras's name, or my_package.my_module:loss; with arguments, {name: huber, delta: 2}. By default"
            " the compiled model's, or sparse_categorical_crossentropy."
        ),
    ] = None
    metrics: Annotated[
        tuple[Named, ...] | None,
        doc(
            "Keras's names, or my_package.my_module:metric; with arguments, {name:"
            " sparse_top_k_categorical_accuracy, k: 3}. By default the compiled model's; accuracy is always"
            " among them."
        ),
    ] = None
    callbacks: Annotated[
        tuple[Named, ...],
        doc(
            "Keras's names, or my_package.my_module:function, which returns a callback or a list; with"
            " arguments, {name: early_stopping, patience: 3}."
        ),
    ] = ()
    steps_per_execution: Annotated[
        Positive | None,
        doc(
            "Steps in one call of the graph. By default the number that the model is compiled with, if that"
            " is more than 1; 1 with callbacks; otherwise as many as take about half a second."
        ),
    ] = None
    jit_compile: Annotated[
        bool | None, doc("Whether XLA compiles the step of each replica; by default, Keras decides.")
    ] = None
    profile: Annotated[
        str | None, doc("Record these steps, such as 20:30, of all tasks in one timeline: docs/timeline.md.")
    ] = None
    seed: Annotated[
        int,
        doc(
            "The seed of the model's first weights, of its random numbers, and of the order and augmentation"
            " of the training data.",
            ge=0,
            le=2**31 - 1,
        ),
    ] = 0
    on_nan: Annotated[
        Literal["stop", "skip"],
        doc(
            "What a NaN or infinite loss does: stop ends the run; skip continues from the last checkpoint"
            " without the batch of that step."
        ),
    ] = "stop"

"""Prove of a run that has ended that it is whole, exact, and leaves nothing behind."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from schedule import Hit
from training import Training

__all__ = ["prove_exact", "prove_lost", "prove_nothing_left", "variables"]

_OF_A_RUN = re.compile(
    r"report\.(json|html)|report/(answers\.json|mistake-\d+\.png)|events\.jsonl|logs/[a-z]+-\d+\.log"
    r"|summaries/(train|test|evaluator)/events\.[^/]+"
    r"|checkpoints/(reached|evaluations\.jsonl|(history|best)\.json|\d+/(about\.json|variables\.(index|data-\d+-of-\d+)))"
    r"|export/(latest|\d+/(assets|metadata\.json|(saved_model|fingerprint)\.pb|variables/variables\..+))"
)
# TensorFlow removes what AutoGraph writes when a process ends, which SIGKILL does not let it do; the launcher
# does it for its tasks, and nobody for a process of its own.
_OF_TENSORFLOW = re.compile(r"__autograph_generated_file\w+\.py|__pycache__")


def variables(training: Training) -> dict[str, np.ndarray]:
    """Read the variables of the last checkpoint."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(training.run / "checkpoints" / str(training.total) / "variables"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def prove_exact(
    training: Training, replicas: int, straight: Training | None = None, *, in_part: int = 0
) -> None:
    """Check a run's steps, variables and export against its config, and against a run without faults.

    So many steps may have been applied in part: those in which an asynchronous worker was lost.
    """
    import tensorflow as tf

    found = variables(training)
    [counted] = (value for name, value in found.items() if "counted" in name)
    [iterations] = (value for name, value in found.items() if "iteration" in name)
    steps = training.report()["steps"]
    assert steps == training.total, f"expected {training.total} steps, received {steps}"
    assert iterations == steps, f"iterations: expected {steps}, received {iterations}"
    count = float(counted) / replicas
    assert abs(count - steps) <= in_part, f"counted: expected {steps} (+- {in_part}), received {count}"
    if straight is not None:
        like = variables(straight)
        assert found.keys() == like.keys()
        others = [name for name in like if found[name].tobytes() != like[name].tobytes()]
        assert not others, f"other bits than without faults: {others}"
    exported = tf.saved_model.load(str(training.run / "export" / "latest"))
    answer = exported.signatures["serving_default"]
    shape = [2, 28, 28, 1]
    asked = {
        name: tf.zeros(shape if spec.dtype == tf.uint8 else shape[:1], spec.dtype)
        for name, spec in answer.structured_input_signature[1].items()
    }
    assert all(len(value) == 2 for value in answer(**asked).values())


def prove_lost(training: Training, hits: Sequence[Hit]) -> None:
    """Check that the run resumed at the newest whole checkpoint after each fault, and what each one cost."""
    every = training.config["checkpoint"]["every"]
    histories = iter([*training.past, training.history()])
    history = next(histories)
    torn_above: int | None = (
        None  # the newest whole checkpoint below a torn one, which is not written again yet
    )
    for hit, following in zip(hits, [*hits[1:], None], strict=True):
        harm = hit.fault.harm
        torn_above = hit.safe if harm.tears or hit.safe == torn_above else None
        if harm.forgets:
            history = next(histories)
        if not harm.loses:
            restarts = history[hit.starts : None if following is None else following.starts]
            assert not restarts, f"{hit}: began again at {restarts}"
        if hit.continues:
            continue
        lost = hit.reached - hit.safe
        assert lost == 0 or not harm.saves, f"{hit}: lost {lost} steps"
        # In the background, training goes on while one checkpoint is written.
        most = every * (1 + (torn_above is not None) + training.config["checkpoint"]["background"])
        assert lost <= most, f"{hit}: lost {lost} steps"
        assert hit.starts < len(history), f"{hit}: did not go on"
        after = history[hit.starts]
        counted = 0 if harm.loses_count else max(0, lost)
        assert after == {"at_step": hit.safe, "lost": counted}, f"{hit}: went on at {after}"
    history = training.history()
    assert training.report()["steps_lost"] == sum(each["lost"] for each in history)
    assert training.report()["starts"] == len(history)


def prove_nothing_left(training: Training) -> None:
    """Look for processes, and for files that are no part of a finished run."""
    alive = training.alive()
    assert not alive, f"processes left: {alive}"
    files = [
        str(each.relative_to(training.run))
        for each in training.run.rglob("*")
        if not each.is_dir() or not any(each.iterdir())
    ]
    left = [name for name in files if not re.fullmatch(f"{_OF_A_RUN.pattern}|{training.files}", name)]
    temporary = [each.name for each in Path(training.environ["TMPDIR"]).iterdir()]
    left += [name for name in temporary if training.is_launched or not _OF_TENSORFLOW.fullmatch(name)]
    assert not left, f"files left: {left}"

"""Make folders of runs by hand: their events, results and answers."""

import json
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from run_started import run_started
from tfdist.launcher.run_events import (
    FILE,
    AnyEvent,
    CheckpointSaved,
    Configured,
    Evaluated,
    Exported,
    LaunchEnded,
    LaunchStarted,
    PhaseBegun,
    Progressed,
    RunEnded,
    RunStarted,
    TaskExited,
    TaskSpeed,
    TasksRestarting,
    TaskStarted,
    Warned,
)

__all__ = ["HOSTILE", "done_run", "events_of_a_run", "started", "write_run"]

HOSTILE = "<script>alert('x')</script>\"&\ud800"
_CONFIG = {"model": {"name": "mnist_cnn"}, "train": {"steps": 40, "learning_rate": 0.001, "seed": 0}}


def events_of_a_run(
    name: str = "digits", *, rate: float = 0.001, warning: str = "it is slow"
) -> list[AnyEvent]:
    """Return the events of a run that lost a worker: each comes a second after the one before it."""
    words = [
        "python",
        "-m",
        "tfdist.train",
        "--config",
        "ps.yaml",
        "--run_dir",
        "/runs/x",
        "--set=train.steps=40",
    ]
    tasks = {"chief:0": "127.0.0.1:1", "worker:0": "127.0.0.1:2", "worker:1": "127.0.0.1:3"}
    config = {**_CONFIG, "train": {**_CONFIG["train"], "learning_rate": rate}}
    events = [
        LaunchStarted(tasks=tasks, command=words, shares="3 tasks on 2 cores"),
        *(TaskStarted(task=task, pid=number) for number, task in enumerate(tasks, 1)),
        PhaseBegun(phase="connecting"),
        Configured(config=config),
        PhaseBegun(phase="building"),
        started(name),
        PhaseBegun(phase="training"),
    ]
    for step in range(10, 50, 10):
        events += [
            Progressed(step=step, steps=40, examples_per_second=900.0, loss=2.0 / step, accuracy=step / 41),
            TaskSpeed(step=step, milliseconds={"worker:0": 5.0, "worker:1": 7.0}, shares={"worker:0": 0.5, "worker:1": 0.5}),
        ]  # fmt: skip
        if step == 20:
            events += [
                TaskExited(task="worker:1", pid=3, status=-9, was_asked=False, starts_again=True),
                TasksRestarting(task="worker:1", all_tasks=False, pause=0.0, restart=1, restarts=3),
                Warned(text=warning),
            ]
        events += [
            PhaseBegun(phase="evaluating"),
            PhaseBegun(phase="training"),
            Evaluated(step=step, results={"accuracy": step / 50, "loss": 1.5 / step, "other": None}),
            CheckpointSaved(step=step, seconds=0.25),
        ]
    events += [
        PhaseBegun(phase="exporting"),
        Exported(folder="/runs/x/export/40"),
        RunEnded(seconds=40.0, problem=""),
        *(TaskExited(task=task, pid=1, status=0, was_asked=False, starts_again=False) for task in tasks),
        LaunchEnded(seconds=50.0, restarts=1, problem=""),
    ]
    for second, event in enumerate(events):
        event.time = 1.8e9 + second
    return events


def started(data: str) -> RunStarted:
    """Return the event of the start of a run."""
    return run_started(
        data=data,
        batch_size=100,
        steps=40,
        cluster={"chief": 1, "worker": 2},
        versions={"tfdist": "1.0", "tensorflow": "2.21.0"},
        machine={"host": "here", "cores": "2 of 2", "GPUs": "none"},
    )


def write_run(
    folder: Path,
    events: Sequence[AnyEvent],
    results: dict[str, Any] | None = None,
    answers: dict[str, Any] | None = None,
) -> Path:
    """Write what a run leaves behind, and return its folder."""
    (folder / "report").mkdir(parents=True)
    if events:
        (folder / FILE).write_bytes(b"".join(_line(event) for event in events))
    if results is not None:
        (folder / "report.json").write_text(json.dumps(results))
    if answers is not None:
        (folder / "report/answers.json").write_text(json.dumps(answers))
        for number in range(len(answers["mistakes"])):
            (folder / f"report/mistake-{number}.png").write_bytes(_png())
    return folder


def _line(event: AnyEvent) -> bytes:
    # msgspec refuses lone surrogates, which a writer in another language may leave as an escape.
    return json.dumps(msgspec.to_builtins(event)).encode() + b"\n"


def done_run(folder: Path, *, data: str = "digits", classes: Sequence[str] = "012", **options: Any) -> Path:
    """Write a run that is done, with answers for three classes."""
    results = {
        "test_accuracy": 0.8,
        "steps": 40,
        "data": data,
        "config": None,
        "bytes_sent_per_step": {"worker:0": 5_000_000},
    }
    events = events_of_a_run(data, **options)
    results["config"] = next(event.config for event in events if isinstance(event, Configured))
    answers = {
        "classes": list(classes),
        "counts": [[0, 0, 40], [0, 2, 2], [1, 1, 37], [2, 2, 30], [2, 1, 9]],
        "mistakes": [{"label": 2, "answer": 1, "probability": 0.93, "row": 17}],
    }
    return write_run(folder, events, results, answers)


def _png() -> bytes:
    """Return a PNG of one grey pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0\x80")) + chunk(b"IEND", b"")

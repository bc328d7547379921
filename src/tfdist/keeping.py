"""Keep the checkpoints of a run, and find in them where it goes on after a stop."""

import contextlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import checkpoint
from tfdist.config import Config
from tfdist.data import Data
from tfdist.errors import ConfigError, shown
from tfdist.files import storage_errors, write_json
from tfdist.loop import State, take_from_chief

__all__ = ["Keeper", "Start"]

_log = logging.getLogger("tfdist")


@dataclass(frozen=True)
class Start:
    """Hold one start of a run.

    Attributes:
        at_step: The step of the checkpoint that it began with, or 0.
        lost: How many steps had been done beyond that, and were done again.
    """

    at_step: int
    lost: int


class Keeper:
    """Save what a run needs to go on, and take it up again: all tasks call it, the chief has the disk."""

    def __init__(
        self, folder: Path, config: Config, data: Data, strategy: tf.distribute.Strategy, *, is_chief: bool
    ) -> None:
        self._folder, self._config, self._strategy, self._is_chief = folder, config, strategy, is_chief
        self._found: checkpoint.Checkpoint | None = None
        self.kept: int | None = None  # the step of the newest checkpoint
        self.skipped: list[int] = []  # numbers of global batches
        self.kept_enough = False  # the newest checkpoint is that of an accuracy which ended the run
        self._best: dict[str, Any] = {}
        self._reached: int | None = None  # the descriptor of a file
        self.history: tuple[Start, ...] = ()
        # What may not change while a run goes on.
        self._trained: dict[str, Any] = {
            "data.name": data.name,
            "data.fingerprint": data.fingerprint,
            "data.batch_size": config.data.batch_size,
            "data.augment": config.data.augment,
            "model.name": config.model.name,
            **{f"model.options.{name}": value for name, value in config.model.options.items()},
            "train.optimizer": config.train.optimizer,
            "train.schedule": config.train.schedule,
            "train.seed": config.train.seed,
        }

    def find(self) -> int:
        """Find where to go on: the step of the newest whole checkpoint, as the chief finds it."""
        self._found = found = checkpoint.find_newest(self._folder) if self._is_chief else None
        if found is not None:
            if self._config.checkpoint.resume == "never" and self.kept is None:
                problem = f"holds checkpoints already, of step {found.step}, and checkpoint.resume is never"
                remedy = "Give another --run_dir, or say resume: auto to go on"
                raise ConfigError(str(self._folder), problem, remedy=remedy)
            _check_same(found, self._trained)
        step, skipped = (-1, []) if found is None else (found.step, found.facts.get("skipped_batches", []))
        is_enough = found is not None and self._is_enough(found.facts["evaluation"])
        if self._is_chief and not self.history:
            self._note_start(max(step, 0))
        step, count, enough = self._agreed([step, len(skipped), is_enough])
        self.kept_enough = bool(enough)
        # Where this is not the first time, those that were left out since that checkpoint are known already.
        self.skipped = self.skipped or self._agreed(skipped if found is not None else [0] * count)
        self.kept = step if step >= 0 else None
        return max(step, 0)

    def batch(self, step: int) -> int:
        """Give the number of the global batch that comes after so many steps."""
        number = step
        for each in sorted(self.skipped):
            number += each <= number
        return number

    def take_up(self, state: State, total: int) -> None:
        """Set all variables as they were at the step to go on from; the chief knows how."""
        if self.kept is None:
            return
        mine = state.values()
        values: list[Any] = list(mine.values())
        if self._found is not None:
            checkpoint.check_variables(self._found, mine)
            values, self._best = self._found.read(), self._found.facts["best"]
        state.assign(take_from_chief(self._strategy, values, is_chief=self._is_chief))
        _log.info("going on at step %d of %d, from %s", self.kept, total, self._folder)

    def note(self, step: int, results: Mapping[str, float]) -> None:
        """Remember the best evaluation, whose checkpoint is kept."""
        if results.get("accuracy", 0.0) >= self._best.get("accuracy", 0.0):
            self._best = {"step": step, **results}

    def has_enough(self, results: Mapping[str, float]) -> bool:
        """Say whether an evaluation found the accuracy to end at; all tasks ask, and hear the same."""
        if self._config.train.until_accuracy is None:
            return False
        return bool(self._agreed([self._is_enough(results)])[0])

    def _is_enough(self, results: Mapping[str, float]) -> bool:
        wanted = self._config.train.until_accuracy
        # Keras counts in 32 bits, whose 0.9 is a little less than that of 64.
        return wanted is not None and bool(np.float32(results.get("accuracy", 0.0)) >= np.float32(wanted))

    def reached(self, step: int) -> None:
        """Remember how far the run has come: what goes on after it knows then what was lost."""
        if self._reached is not None:
            # Not synced: it outlives the process, which is what usually ends. Rewritten in place, so that no
            # disk that has filled up since is in the way; and a count for the report is no reason to fail.
            with contextlib.suppress(OSError):
                os.pwrite(self._reached, b"%20d\n" % step, 0)

    def _note_start(self, step: int) -> None:
        """Add this start to the history of the run."""
        with storage_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._reached = os.open(self._folder / "reached", os.O_RDWR | os.O_CREAT, 0o666)
            before = os.pread(self._reached, 64, 0).strip()
            file = self._folder / "history.json"
            told = json.loads(file.read_text()) if file.exists() else []
        lost = max(0, int(before) - step) if before.isdigit() else 0
        self.history = (*(Start(**each) for each in told), Start(step, lost))
        write_json(file, [asdict(each) for each in self.history])
        self.reached(step)

    def save(self, step: int, values: Mapping[str, Any], results: Mapping[str, float]) -> None:
        """Save what the run needs to go on, where this is the chief."""
        self.kept = step
        if not self._is_chief:
            return
        facts = {
            "trained": self._trained,
            "examples": step * self._config.data.batch_size,
            "evaluation": dict(results),
            "best": self._best,
            "skipped_batches": sorted(self.skipped),
        }
        checkpoint.save(self._folder, step, values, facts)
        checkpoint.prune(self._folder, self._config.checkpoint.keep, also=[self._best.get("step", 0)])

    def _agreed(self, numbers: list[int]) -> list[int]:
        """Take some numbers from the chief; all tasks have to give as many."""
        if not numbers:
            return []
        found = take_from_chief(self._strategy, numbers, is_chief=self._is_chief)
        return [int(each) for each in found]


def _check_same(found: checkpoint.Checkpoint, trained: Mapping[str, Any]) -> None:
    """Refuse to go on with something else than what was trained, naming the first difference."""
    for name in {**found.facts["trained"], **trained}:
        before, value = found.facts["trained"].get(name), trained.get(name)
        if before != value:
            problem = f"was trained with {name} {shown(before)}, but now it is {shown(value)}"
            remedy = "Give another --run_dir, or the same value"
            raise ConfigError(str(found.folder), problem, remedy=remedy)

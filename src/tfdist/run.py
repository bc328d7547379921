"""Own the cadence of a run: steps, evaluations, checkpoints, curves, and where it goes on after a stop."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import checkpoint
from tfdist.cluster import ClusterConfig
from tfdist.config import Config
from tfdist.data import Data
from tfdist.errors import ConfigError, shown
from tfdist.launcher import report_progress
from tfdist.loop import Session, State, Step, Totals, run_tests, take_from_chief
from tfdist.recipe import steps_per_epoch, test_batches, total_steps, train_batches
from tfdist.summaries import Summaries

__all__ = ["Run"]

_SECONDS_BETWEEN_REPORTS = 0.5
_log = logging.getLogger("tfdist")


class Run:
    """Train one model on one cluster, as one of its tasks that compute.

    Steps are counted from the start of the run, whatever stops there were in between. What was trained on in
    each follows from the seed and the step alone, so going on at a step needs no more than its number.
    """

    def __init__(
        self,
        config: Config,
        cluster: ClusterConfig,
        strategy: tf.distribute.Strategy,
        data: Data,
        model: Any,
        folder: Path,
    ) -> None:
        self._config, self._cluster, self._strategy = config, cluster, strategy
        self._data, self._model = data, model
        self._checkpoints = folder / "checkpoints"
        self._is_chief = cluster.is_chief
        self._per_epoch = steps_per_epoch(config, data)
        self.total = total_steps(config, data)
        self.step = self.begun_at = 0
        self._best: dict[str, Any] = {}
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
        self._summaries = Summaries(folder / "summaries", ("train", "test")) if self._is_chief else None

    def train(self) -> dict[str, float]:
        """Train to the last step, from the newest checkpoint if there is one; give the final evaluation."""
        found = self._newest()
        self._pace = _Pace(self._config.data.batch_size, self.step)
        session = Session(self._model, self._strategy, self._batches)
        training = session.training()
        testing = session.testing(lambda context: test_batches(context, self._data, self._config))
        self._state = State(self._model, self._strategy, session.random_states)
        self._take_up(found)
        evaluate_every = self._config.evaluation.every or self._per_epoch
        save_every = self._config.checkpoint.every or self._per_epoch
        results: dict[str, float] = {}
        while self.step < self.total:
            self._advance(session, training, _next(self.step, self.total, evaluate_every, save_every))
            is_last = self.step == self.total
            if is_last:
                session.finish()
            # An evaluator of its own spares the cluster all evaluations but the last.
            is_due = is_last or (self.step % evaluate_every == 0 and not self._config.cluster.evaluator)
            results = self._evaluate(session, testing) if is_due else {}
            if is_last or self.step % save_every == 0:
                self._save(results)
        return results or self._evaluate(session, testing)

    def close(self) -> None:
        """Have the curves on the disk."""
        if self._summaries is not None:
            self._summaries.close()

    def show_answers(self, images: Any, labels: Any, answers: Any) -> None:
        """Put what the model took the test images for beside the curves."""
        if self._summaries is not None:
            self._summaries.answers("test", self.step, images, labels, answers, self._data.classes)

    def _batches(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
        if isinstance(self._strategy, tf.distribute.ParameterServerStrategy):
            # A step is one worker's: all workers together have done that many.
            skip = self.step // context.num_input_pipelines
        else:
            # In each step a pipeline feeds so many replicas, one batch each.
            skip = self.step * (context.num_replicas_in_sync // context.num_input_pipelines)
        return train_batches(context, self._data, self._config, skip_batches=skip)

    def _advance(self, session: Session, training: Any, goal: int) -> None:
        """Train up to a step."""
        session.train_step.reset()
        counted = session.train_step.no_totals()
        every, per_call = self._config.summaries.every, self._config.train.steps_per_execution
        for ran, totals in training.epoch(goal - self.step, per_call, counted):
            before, self.step = self.step, self.step + ran
            if self.step // every > before // every or self.step == self.total:
                # All tasks have a part in it: Keras 2 puts together what each of them has counted.
                self._show(session.train_step, _since(session.train_step, counted, totals))
                counted = totals
            self._pace.tell(self.step, self.total)
        session.end_epoch()

    def _show(self, way: Step, counted: Totals) -> None:
        """Add a point to the curves of training."""
        logs = {name: float(value) for name, value in way.results(counted).items()}
        self._pace.loss = logs.get("loss")
        if self._summaries is not None:
            logs["examples per second"] = self._pace.since_last_asked(self.step)
            logs["learning rate"] = float(tf.convert_to_tensor(self._model.optimizer.learning_rate))
            self._summaries.add("train", self.step, {**logs, **self._milliseconds(way.times(counted))})

    def _milliseconds(self, times: Any) -> dict[str, float]:
        """Give the time that each task computes for a step, without what it waits for others and for data."""
        if times is None:
            return {}
        roles = ("worker",) if self._cluster.ps else ("chief", "worker")
        tasks = [str(each) for each in self._cluster.tasks() if each.type in roles] or ["this process"]
        # Of a task's replicas the slowest counts.
        each = np.asarray(times).reshape(len(tasks), -1, 2)
        slowest = 1000 * np.max(each[:, :, 0] / np.maximum(each[:, :, 1], 1), axis=1)
        return {
            f"milliseconds of a step/{task}": float(value) for task, value in zip(tasks, slowest, strict=True)
        }

    def _evaluate(self, session: Session, testing: Any) -> dict[str, float]:
        found = run_tests(session, testing, self._model, self._config.evaluation.batches)
        if self._summaries is not None:
            self._summaries.add("test", self.step, found)
        if found.get("accuracy", 0.0) >= self._best.get("accuracy", 0.0):
            self._best = {"step": self.step, **found}
        return found

    def _save(self, found: Mapping[str, float]) -> None:
        """Save what the run needs to go on, where this is the chief."""
        if not self._is_chief:
            return
        facts = {
            "trained": self._trained,
            "examples": self.step * self._config.data.batch_size,
            "evaluation": dict(found),
            "best": self._best,
        }
        checkpoint.save(self._checkpoints, self.step, self._state.values(), facts)
        checkpoint.prune(self._checkpoints, self._config.checkpoint.keep, also=[self._best.get("step", 0)])

    def _newest(self) -> checkpoint.Checkpoint | None:
        """Find where to go on: the step of the newest whole checkpoint, as the chief finds it."""
        found = checkpoint.find_newest(self._checkpoints) if self._is_chief else None
        if found is not None:
            if self._config.checkpoint.resume == "never":
                problem = f"holds checkpoints already, of step {found.step}, and checkpoint.resume is never"
                remedy = "Give another --run_dir, or say resume: auto to go on"
                raise ConfigError(str(self._checkpoints), problem, remedy=remedy)
            _check_same(found, self._trained)
        step = 0 if found is None else found.step
        [agreed] = take_from_chief(self._strategy, [step], is_chief=self._is_chief)
        self.step = self.begun_at = int(agreed)
        return found

    def _take_up(self, found: checkpoint.Checkpoint | None) -> None:
        """Set all variables as they were at the step to go on from; the chief knows how."""
        if not self.step:
            return
        mine = self._state.values()
        values: list[Any] = list(mine.values())
        if found is not None:
            checkpoint.check_variables(found, mine)
            values, self._best = found.read(), found.facts["best"]
        self._state.assign(take_from_chief(self._strategy, values, is_chief=self._is_chief))
        _log.info("going on at step %d of %d, from %s", self.step, self.total, self._checkpoints)


class _Pace:
    """Tell the launcher how far and how fast the run goes, where this is its chief."""

    def __init__(self, batch_size: int, step: int) -> None:
        self._batch_size = batch_size
        self._told = self._asked = (time.monotonic(), step)
        self.loss: float | None = None

    def tell(self, step: int, total: int) -> None:
        """Report, but not too often."""
        if time.monotonic() - self._told[0] >= _SECONDS_BETWEEN_REPORTS or step == total:
            speed, self._told = self._speed(self._told, step)
            report_progress(step, total, examples_per_second=speed, loss=self.loss)

    def since_last_asked(self, step: int) -> float:
        """Give the examples per second since this was last called."""
        speed, self._asked = self._speed(self._asked, step)
        return speed

    def _speed(self, since: tuple[float, int], step: int) -> tuple[float, tuple[float, int]]:
        now = time.monotonic()
        return (step - since[1]) * self._batch_size / max(now - since[0], 1e-9), (now, step)


def _next(step: int, total: int, *periods: int) -> int:
    """Give the next step at which something is due."""
    return min(total, *((step // period + 1) * period for period in periods))


def _since(way: Step, before: Totals, now: Totals) -> Totals:
    """Give what was counted since."""
    return tuple(each - old for each, old in zip(now, before, strict=True)) if way.adds_up else now


def _check_same(found: checkpoint.Checkpoint, trained: Mapping[str, Any]) -> None:
    """Refuse to go on with something else than what was trained, naming the first difference."""
    for name in {**found.facts["trained"], **trained}:
        before, value = found.facts["trained"].get(name), trained.get(name)
        if before != value:
            problem = f"was trained with {name} {shown(before)}, but now it is {shown(value)}"
            remedy = "Give another --run_dir, or the same value"
            raise ConfigError(str(found.folder), problem, remedy=remedy)

"""Own the cadence of a run: steps, evaluations, checkpoints, curves, and where it goes on after a stop."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.calls import fetch
from tfdist.cluster import ClusterConfig
from tfdist.config import Config
from tfdist.data import Data
from tfdist.departures import Departures
from tfdist.errors import NotFinite, Preempted
from tfdist.keeping import Keeper, Start
from tfdist.loop import Agreement, Runner, Session, State, Step, Totals, run_tests, wait_for_all
from tfdist.pace import Pace
from tfdist.preemption import Notice
from tfdist.recipe import steps_per_epoch, test_batches, total_steps, train_batches
from tfdist.recovery import Recovery
from tfdist.summaries import Summaries

__all__ = ["Run"]

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
        notice: Notice,
        departures: Departures,
        after_saving: Callable[[tf.distribute.Strategy], None] | None = None,
    ) -> None:
        self._config, self._cluster, self._strategy = config, cluster, strategy
        self._data, self._model, self._after_saving = data, model, after_saving
        self._per_epoch = steps_per_epoch(config, data)
        self.total = total_steps(config, data)
        self.step = self.begun_at = 0
        self._keeper = Keeper(folder / "checkpoints", config, data, strategy, is_chief=cluster.is_chief)
        self._recovery = Recovery(config, cluster, strategy, self._keeper)
        self._summaries = Summaries(folder / "summaries", ("train", "test")) if cluster.is_chief else None
        self._notice, self._departures, self._is_leaving = notice, departures, False
        self._agreement = Agreement(strategy, is_chief=cluster.is_chief)
        self._testing: Runner | None = None

    @property
    def history(self) -> tuple[Start, ...]:
        """Give where the run has begun, and begun again; known to the chief."""
        return self._keeper.history

    def train(self) -> dict[str, float]:
        """Train to the last step, or until the accuracy that is asked for, from the newest checkpoint if any.

        Gives the final evaluation.

        Raises:
            Preempted: A task of the cluster was told to end. All is saved.
        """
        self.step = self.begun_at = self._keeper.find()
        session = Session(self._model, self._strategy, self._batches)
        training = session.training(stops_at_failure=True)
        state = State(self._model, self._strategy, session.random_states)
        self._keeper.take_up(state, self.total)
        self._recovery.begin(state)
        self._pace = self._new_pace()
        with self._notice.deferred():
            results = {} if self._keeper.kept_enough else self._train(session, training, state)
        self._notice.heed()
        results = results or self._evaluate(session)
        if self._is_leaving:
            raise self._preempted()
        return results

    def _train(self, session: Session, training: Runner, state: State) -> dict[str, float]:
        evaluate_every = self._config.evaluation.every or self._per_epoch
        save_every = self._config.checkpoint.every or self._per_epoch
        results: dict[str, float] = {}
        while self.step < self.total:
            goal = _next(self.step, self.total, evaluate_every, save_every)
            try:
                self._advance(session, training, self._recovery.goal(self.step, goal))
                is_last = self.step == self.total
                if is_last:
                    session.finish()
                if self._recovery.is_searching:
                    self._recovery.checked(self.step, state)
                # An evaluator of its own spares the cluster all evaluations but the last.
                is_due = is_last or (self.step % evaluate_every == 0 and not self._config.cluster.evaluator)
                results = self._evaluate(session) if is_due and not self._is_leaving else {}
                is_enough = bool(results) and self._keeper.has_enough(results)
                is_last = is_last or is_enough
                if is_last or self.step % save_every == 0 or self._is_leaving:
                    values = self._recovery.checked(self.step, state)
                    self._keeper.save(self.step, values, {} if self._is_leaving else results)
            except NotFinite as failure:
                self._recovery.answer(failure, self.step)
                self._go_back(session, training, state)
                continue
            if self._is_leaving:
                wait_for_all(self._strategy)  # the chief has saved then
                raise self._preempted()
            if self._after_saving is not None and self.step % save_every == 0 and not is_last:
                if self._summaries is not None:
                    self._summaries.flush()
                self._after_saving(self._strategy)
            if is_last:
                self._tell_end(is_enough)
                break
        return results

    def _tell_end(self, is_enough: bool) -> None:
        """Say how the accuracy that was asked for has been met, if one was."""
        wanted = self._config.train.until_accuracy
        if wanted is None or not self._cluster.is_chief:
            return
        if is_enough:
            _log.info(
                "ends at step %d of %d: the test accuracy has come to %g", self.step, self.total, wanted
            )
        else:
            _log.warning("the test accuracy has not come to %g in %d steps", wanted, self.total)
        self._pace.tell(self.step, self.step)

    @property
    def skipped_batches(self) -> list[int]:
        """Give the numbers of the global batches that were left out."""
        return sorted(self._keeper.skipped)

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
            return train_batches(context, self._data, self._config, skip_steps=skip)
        skip, without = self._keeper.batch(self.step), self._keeper.skipped
        return train_batches(context, self._data, self._config, skip_steps=skip, without=without)

    def _go_back(self, session: Session, training: Runner, state: State) -> None:
        """Take up the last checkpoint, and the data from there on."""
        self.step = self._keeper.find()
        self._keeper.take_up(state, self.total)
        self._pace = self._new_pace()
        training.rewind(session.distribute(self._batches))

    def _new_pace(self) -> Pace:
        return Pace(self._cluster, self._config.data.batch_size, self.step, self._config.summaries.every)

    def _advance(self, session: Session, training: Runner, goal: int) -> None:
        """Train up to a step, or to where the tasks agree to leave."""
        way = session.train_step
        way.reset()
        totals = counted = way.no_totals()
        every, per_call = self._config.summaries.every, self._config.train.steps_per_execution
        for ran, totals in training.epoch(goal - self.step, per_call, counted):
            before, self.step = self.step, self.step + ran
            self._recovery.check_losses(self.step, way.failure(totals))
            if self.step // every > before // every or self.step == self.total:
                # All tasks have a part in it: Keras 2 puts together what each of them has counted.
                self._show(way, _since(way, counted, totals))
                counted = totals
            self._pace.tell(self.step, self.total)
            self._keeper.reached(self.step)
            if self._leaves():
                training.wind_up()
        if self._summaries is not None:
            self._pace.compare(self.step, way.times(_since(way, counted, totals)))
        session.end_epoch()

    def _show(self, way: Step, counted: Totals) -> None:
        """Add a point to the curves of training."""
        logs = {name: float(value) for name, value in way.results(counted).items()}
        self._pace.loss = logs.get("loss")
        if self._summaries is not None:
            logs["examples per second"] = self._pace.since_last_asked(self.step)
            logs["learning rate"] = float(fetch(self._model.optimizer.learning_rate))
            times = way.times(counted)
            taken = {
                f"milliseconds of a step/{task}": value
                for task, value in self._pace.milliseconds(times).items()
            }
            self._summaries.add("train", self.step, {**logs, **taken})
            self._pace.compare(self.step, times)

    def _leaves(self) -> bool:
        """Ask the others, after an execution, whether to leave; once they do, that stands."""
        wants = self._notice.has_come or self._departures.are_due
        self._is_leaving = self._is_leaving or self._agreement.after_execution(wants)
        return self._is_leaving

    def _preempted(self) -> Preempted:
        problem = f"a task was told to end; all is saved at step {self.step} of {self.total}"
        return Preempted("SIGTERM", problem, remedy="The same command goes on from there")

    def _evaluate(self, session: Session) -> dict[str, float]:
        if self._testing is None:  # when it is needed: the first step does not wait for it
            self._testing = session.testing(lambda context: test_batches(context, self._data, self._config))
        batches = self._config.evaluation.batches
        found = run_tests(session, self._testing, self._model, batches, leave=self._leaves)
        if self._is_leaving:
            return {}
        if self._summaries is not None:
            self._summaries.add("test", self.step, found)
            told = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
            _log.info("step %d of %d: test %s", self.step, self.total, told)
        self._keeper.note(self.step, found)
        return found


def _next(step: int, total: int, *periods: int) -> int:
    """Give the next step at which something is due."""
    return min(total, *((step // period + 1) * period for period in periods))


def _since(way: Step, before: Totals, now: Totals) -> Totals:
    """Give what was counted since."""
    return tuple(each - old for each, old in zip(now, before, strict=True)) if way.adds_up else now

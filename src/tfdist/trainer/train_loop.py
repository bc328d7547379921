"""Train up to the last step: evaluate, save and report at the steps where that is due, and resume."""

import enum
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.coordination.calls_between_tasks import fetch
from tfdist.coordination.stall_watch import BETWEEN_STEPS, doing
from tfdist.errors import NotFinite, Preempted
from tfdist.launcher.hide_secrets import without_secrets
from tfdist.launcher.record_events import is_launched, record
from tfdist.launcher.run_events import Evaluated, PhaseBegun
from tfdist.profiling.profiled_steps import ProfiledSteps
from tfdist.profiling.timeline_file import Timeline
from tfdist.profiling.timeline_paths import shares_file
from tfdist.strategies.current_cluster_and_strategy import made_with
from tfdist.trainer.batches_of_config import Batches
from tfdist.trainer.call_callbacks import Callbacks
from tfdist.trainer.callbacks_of_config import named_callbacks
from tfdist.trainer.checkpoint_manager import CallbackFacts, CheckpointManager
from tfdist.trainer.compilation import check_results, counts_right_classes
from tfdist.trainer.nan_recovery import Recovery
from tfdist.trainer.remote_run_folder import put_file
from tfdist.trainer.run_context import RunContext
from tfdist.trainer.speed_and_stragglers import Throughput
from tfdist.trainer.starts_and_lost_steps import Start
from tfdist.trainer.step_counts import periods, profiled_range, steps_per_call, steps_per_epoch, total_steps
from tfdist.trainer.summaries import Summaries
from tfdist.training.checkpoints.share_checkpoint import Values
from tfdist.training.epoch_batches import EpochBatches
from tfdist.training.evaluate import run_tests
from tfdist.training.keras.losses_and_metrics.metrics_of_callbacks import metrics_read_in_this_process
from tfdist.training.keras.model_facts import has_own
from tfdist.training.keras.steps.step_base import KerasStep
from tfdist.training.keras.variables_of_run import State, other_optimizers, variables_of_tensorflow
from tfdist.training.model_session import Phase, Session
from tfdist.training.reports.logs import as_scalars, as_text
from tfdist.training.reports.software_and_devices import record_start, versions
from tfdist.training.reports.task_speed import record_task_speed
from tfdist.training.run_batches import name_steps
from tfdist.training.runners.multi_step import Totals
from tfdist.training.workers.exchange_numbers import wait_for_all
from tfdist.training.workers.stop_together import Agreement

_TESTS_IN_A_CALL = 10  # at least
_log = logging.getLogger("tfdist")


def _command() -> list[str]:
    """Return what was typed to train, unless a launcher has recorded it or a program has called tfdist."""
    is_typed = Path(sys.argv[0]).name in ("train.py", "tfdist train")
    return ["tfdist", "train", *without_secrets(sys.argv[1:])] if is_typed and not is_launched() else []


class _End(enum.Enum):
    """The reasons why a run ends."""

    LEAVING = "a task was told to end"
    STEPS = "all steps are done"
    ACCURACY = "the test accuracy has reached train.until_accuracy"
    CALLBACK = "a callback has stopped the training"


class _Part(NamedTuple):
    """The end of a part of a run.

    Attributes:
        results: The results of the evaluation there, if there was one.
        end: Why the run ends there; None if it continues.
    """

    results: dict[str, float]
    end: _End | None


class Run:
    """The training of one model on one cluster, by one of the tasks that compute.

    Steps count from the first start of the run, whatever interruptions there were. The examples of a step
    follow from the seed and the step alone, so the data of a resumed run needs only the step's number.
    """

    def __init__(self, context: RunContext, model: Any) -> None:
        self._context, self._model = context, model
        self._config, self._strategy = context.config, context.strategy
        self._per_epoch = steps_per_epoch(context.config, context.data)
        self._evaluate_every, self._save_every = periods(context.config, context.data)
        self.total = total_steps(context.config, context.data)
        self.step = self.begun_at = 0
        self._profiled = self._profiled_steps()
        self._checkpoint_manager = CheckpointManager(context)
        self._recovery = Recovery(context, self._checkpoint_manager)
        summaries = context.folder.summaries
        self._summaries = Summaries(summaries, ("train", "test")) if context.is_chief else None
        self._is_leaving = False
        self._testing: Phase | None = None
        self._batches = Batches.of(context.config, context.data, model, context.strategy)
        self._named_callbacks = named_callbacks(context.config)
        # By the config, which is the same on all tasks: a function may return callbacks on the chief alone.
        self._has_callbacks = bool(context.config.train.callbacks)
        self._epochs = (self._per_epoch,) if self._has_callbacks else ()  # when callbacks are called
        workers = context.cluster.size("worker") if context.is_asynchronous else 0
        self._calls = steps_per_call(context.config, context.data, model, workers=workers)
        self._agreement = Agreement(context.strategy, is_chief=context.is_chief, steps_per_call=self._calls)
        self._callbacks: Callbacks | None = None
        self._epoch_totals: Totals | None = None  # of the part of an epoch that is done; for callbacks

    @property
    def seconds_before(self) -> float:
        """Return the seconds that earlier starts of the run took, up to the checkpoint of this one."""
        return self._checkpoint_manager.seconds_before

    @property
    def counts_right_classes(self) -> bool:
        """Return whether the accuracy of an evaluation is Keras's own: the share of right classes."""
        return counts_right_classes(self._model)

    @property
    def history(self) -> tuple[Start, ...]:
        """Return all starts of the run, which only the chief knows."""
        return self._checkpoint_manager.history.starts

    def train(self) -> dict[str, float]:
        """Train, from the newest checkpoint if there is one, and return the final evaluation.

        Training ends at the last step, or at train.until_accuracy.

        Raises:
            MembershipChanged: A task waits to join an elastic cluster. A checkpoint is saved.
            Preempted: A task of the cluster was told to end. A checkpoint is saved.
        """
        self.step = self.begun_at = self._checkpoint_manager.find()
        session = Session(self._model, self._strategy, self._batches_left)
        training = session.training(stops_at_failure=True)
        has_own_step = has_own(self._model, "train_step")
        beside = other_optimizers(self._model, has_own_step=has_own_step, refuses_unbuilt=False)
        others = [*session.random_states, *variables_of_tensorflow(self._model)]
        state = State(self._model, self._strategy, others, beside=beside)
        if self._has_callbacks:
            self._callbacks = Callbacks(
                self._named_callbacks,
                self._model,
                self._strategy,
                per_epoch=self._per_epoch,
                total=self.total,
            )
        self._resume(state)
        self._recovery.begin(state)
        if (
            self._recovery.skips and self._checkpoint_manager.newest_step is None
        ):  # a checkpoint to go back to
            self._save(state.values() if self._context.is_chief else {}, {})
        self._throughput = self._new_throughput()
        self._record_start()
        writer = self._checkpoint_manager.writer
        metrics = metrics_read_in_this_process(self._model, self._strategy)
        with self._context.notice.deferred(), doing(BETWEEN_STEPS), writer, metrics:
            results = {} if self._checkpoint_manager.has_ended else self._train(session, training, state)
        self._context.notice.raise_if_received()
        results = results or self._evaluate(session)
        if self._is_leaving:
            raise self._preempted()
        return results

    def _resume(self, state: State) -> None:
        """Restore the checkpoint that was found, if there is one; begin the callbacks if more is to come."""
        read = self._checkpoint_manager.read(state, self.total)
        self._restore(state, read)
        has_more = self.step < self.total or self._checkpoint_manager.is_pending
        if self._callbacks is not None and has_more and not self._checkpoint_manager.has_ended:
            if read is not None and self._context.is_chief:
                self._callbacks.continue_logs(read[0])
            self._callbacks.begin()
            self._restore(state, read)  # what that has changed, as if there had been no stop

    def _restore(self, state: State, read: tuple[CallbackFacts, Values] | None) -> None:
        """Set the variables and the callbacks to what was read from a checkpoint, if there is one."""
        if read is None:
            return
        facts, values = read
        state.assign(values.state)
        if self._callbacks is not None:
            self._callbacks.restore(facts, values.of_callbacks, self.step)

    def _save(
        self, values: Mapping[str, Any], results: Mapping[str, float], *, is_pending: bool = False
    ) -> None:
        """Save a checkpoint; `values` are those of all variables on the chief."""
        callbacks, facts = self._callbacks, None
        if callbacks is not None and self._context.is_chief:
            values, facts = {**values, **callbacks.arrays()}, callbacks.facts()
        self._checkpoint_manager.save(
            self.step,
            values,
            results,
            is_stopped=callbacks is not None and callbacks.has_stopped,
            is_pending=is_pending,
            callbacks=facts,
        )

    @property
    def _has_due(self) -> bool:
        """Return whether an evaluation or callbacks are due at this step, for the start after this one."""
        every = (self._evaluate_every, *self._epochs)
        has_stopped = self._callbacks is not None and self._callbacks.has_stopped
        return has_stopped or self.step == self.total or any(self.step % each == 0 for each in every)

    def _record_start(self) -> None:
        if not self._context.is_chief:
            return
        config, data, cluster = self._config, self._context.data, self._context.cluster
        record_start(
            cluster,
            self._strategy,
            strategy=made_with(self._strategy)[1],
            model=config.model.name,
            parameters=self._model.count_params(),
            data=data.name,
            substitute_for=data.substitute_for,
            train_examples=data.train_examples,
            test_examples=data.test_examples,
            batch_size=config.data.batch_size,
            step=self.step,
            steps=self.total,
            steps_lost=self.history[-1].lost if self.history else 0,
            versions=versions(),
            command=_command(),
        )
        record(PhaseBegun(phase="training"))

    def _train(self, session: Session, training: Phase, state: State) -> dict[str, float]:
        part = _Part({}, None)
        while (self.step < self.total or self._checkpoint_manager.is_pending) and part.end is None:
            try:
                part = self._train_part(session, training, state)
            except NotFinite as failure:
                self._go_back(failure, session, training, state)
                continue
            if self._is_leaving:
                self._checkpoint_manager.writer.wait()
                wait_for_all(self._strategy)  # until the chief has saved
                raise self._preempted()
            if part.end is None:
                self._check_membership()
        if part.end is not None:
            self._profiled.end_if_due(self.step, is_over=True)
            self._report_end(part.end)
        return part.results

    def _train_part(self, session: Session, training: Phase, state: State) -> _Part:
        """Train up to the next step at which something is due, and do that."""
        if self._checkpoint_manager.is_pending:  # the start before was told to end at this step
            self._checkpoint_manager.is_pending = False
        else:
            self._train_until_due(training)
        are_steps_done = self.step == self.total
        self._profiled.end_if_due(self.step, is_over=are_steps_done or self._is_leaving)
        if are_steps_done and not self._is_leaving:
            session.finish()
        if self._recovery.is_searching:
            self._recovery.checked_values(self.step, state)
        part = self._evaluate_if_due(session)
        if self._callbacks is not None and part.end is not _End.LEAVING:
            part = self._callbacks_if_due(session, self._callbacks, part)
        self._save_if_due(part, state)
        return part

    def _train_until_due(self, training: Phase) -> None:
        goal = _next(self.step, self.total, self._evaluate_every, self._save_every, *self._epochs)
        goal = self._profiled.boundary(self.step, goal)
        self._profiled.begin_if_due(self.step)
        self._advance(training, self._recovery.goal(self.step, goal))

    def _evaluate_if_due(self, session: Session) -> _Part:
        results, end = {}, _End.STEPS if self.step == self.total else None
        # If there is an evaluator task, the other tasks run only the last evaluation.
        is_due = self.step % self._evaluate_every == 0 and not self._config.cluster.evaluator
        if (end or is_due) and not self._is_leaving:
            results = self._evaluate(session)
        if results and self._checkpoint_manager.has_enough(results):
            if end is None and self._callbacks is None and getattr(self._model.optimizer, "use_ema", False):
                session.finish()  # which sets the weights to their averages
                results = self._evaluate(session)
            end = _End.ACCURACY
        return _Part(results, _End.LEAVING if self._is_leaving else end)

    def _callbacks_if_due(self, session: Session, callbacks: Callbacks, part: _Part) -> _Part:
        """Call the callbacks if an epoch or the run ends, which a callback may decide."""
        end = part.end or (_End.CALLBACK if callbacks.has_stopped else None)
        if (end or self.step % self._per_epoch == 0) and callbacks.after_epoch(part.results):
            end = end or _End.CALLBACK
        if end is None:
            return part
        if self.step < self.total:
            session.finish()
        callbacks.end()
        return _Part(self._evaluate(session), end)  # a callback may have changed the weights

    def _save_if_due(self, part: _Part, state: State) -> None:
        if part.end is None and self.step % self._save_every:
            return
        values = self._recovery.checked_values(self.step, state)
        self._save(values, part.results, is_pending=part.end is _End.LEAVING and self._has_due)

    def _check_membership(self) -> None:
        """At a checkpoint, let tasks join that wait to join an elastic cluster."""
        elastic = self._context.elastic
        if elastic is None or self.step % self._save_every:
            return
        if self._summaries is not None:
            self._summaries.flush()
        self._checkpoint_manager.writer.wait()
        elastic.check_membership(self._strategy)

    def _report_end(self, end: _End) -> None:
        """Report the last step, and log whether the test accuracy has reached train.until_accuracy."""
        if not self._context.is_chief:
            return
        if end is not _End.STEPS:
            self._throughput.report(self.step, self.step)
        wanted = self._config.train.until_accuracy
        if wanted is None:
            return
        if end is _End.ACCURACY:
            _log.info(
                "training ends at step %d of %d: the test accuracy has reached %g",
                self.step,
                self.total,
                wanted,
            )
        else:
            _log.warning("the test accuracy has not reached %g in %d steps", wanted, self.total)

    @property
    def skipped_batches(self) -> list[int]:
        """Return the numbers of the global batches that were left out."""
        return list(self._checkpoint_manager.skipped)

    def close(self) -> None:
        """Write the curves to the disk, and close their files."""
        if self._summaries is not None:
            self._summaries.close()

    def show_answers(self, images: Any, labels: Any, answers: Any) -> None:
        """Write the model's answers for the test images beside the curves."""
        if self._summaries is not None:
            self._summaries.answers("test", self.step, images, labels, answers, self._context.data.classes)

    def _batches_left(self, context: tf.distribute.InputContext) -> tf.data.Dataset:
        if self._context.is_asynchronous:
            # Each step is a step of one worker, and self.step counts those of all workers.
            return self._batches.train(context, self.step // context.num_input_pipelines)
        skip, without = self._checkpoint_manager.batch(self.step), self._checkpoint_manager.skipped
        return self._batches.train(context, skip, without)

    def _go_back(self, failure: NotFinite, session: Session, training: Phase, state: State) -> None:
        """Restore the last checkpoint, and start the data at its step; leave out the batch of the failure."""
        batch = self._recovery.batch_to_skip(failure, self.step)
        if batch is not None:
            self._checkpoint_manager.skip(batch)
        self.step = self._checkpoint_manager.find()
        self._restore(state, self._checkpoint_manager.read(state, self.total))
        self._throughput, self._epoch_totals = self._new_throughput(), None
        if self._callbacks is not None:
            self._callbacks.go_back()
        training.runner.rewind(session.distribute(self._batches_left))

    def _profiled_steps(self) -> ProfiledSteps:
        """Return the steps that train.profile names; their timeline goes to the run's folder."""
        folder = self._context.folder

        def keep(timeline: Timeline) -> None:
            for path in (timeline.path, shares_file(timeline.path)):
                put_file(folder, path)

        steps = profiled_range(self._config, self.total)
        root = folder.root if self._context.is_chief else None
        return ProfiledSteps(steps, self._strategy, root, keep, say=_log.info)

    def _new_throughput(self) -> Throughput:
        return Throughput(
            self._context.cluster, self._config.data.batch_size, self.step, self._config.summaries.every
        )

    def _advance(self, training: Phase, goal: int) -> None:
        """Train up to a step, or until the tasks agree to leave or a callback stops the training."""
        step, callbacks = training.step, self._callbacks
        self._throughput.clock.set_training(True)
        totals = counted = step.begin() if self._epoch_totals is None else self._epoch_totals
        if callbacks is not None:
            callbacks.before_steps(self.step)
        every = self._config.summaries.every
        self._calls.pause()
        executions = training.runner.epoch(goal - self.step, self._next_call, counted)
        for ran, totals in name_steps(executions, self.step):
            before, self.step = self.step, self.step + ran
            self._recovery.check_losses(self.step, step.failure(totals))
            if self.step // every > before // every or self.step == self.total:
                # All tasks call this, because Keras 2 gathers the counts of each of them.
                self._show(step, step.since(counted, totals))
                counted = totals
            self._throughput.report(self.step, self.total)
            self._checkpoint_manager.history.write_steps_done(self.step)
            is_stopped = callbacks is not None and callbacks.after_steps(self.step, step.batch_logs(totals))
            if self._leaves(ran) or is_stopped:
                training.runner.wind_up()
            elif callbacks is not None and self.step < goal:
                callbacks.before_steps(self.step)
                training.runner.settle_writes()
        if callbacks is not None:
            self._epoch_totals = totals if self.step % self._per_epoch else None
        if self._summaries is not None:
            self._throughput.compare(self.step, step.times(step.since(counted, totals)))
        step.end_epoch()
        self._throughput.clock.set_training(False)

    def _show(self, step: KerasStep, counted: Totals) -> None:
        """Add a point to the curves of training."""
        logs = as_scalars(step.results(counted))
        self._throughput.loss, self._throughput.accuracy = logs.get("loss"), logs.get("accuracy")
        if self._summaries is not None:
            logs["examples per second"] = self._throughput.since_last_asked(self.step)
            rate = getattr(getattr(self._model, "optimizer", None), "learning_rate", None)
            if rate is not None:  # MultiOptimizer has several
                logs["learning rate"] = float(fetch(rate))
            times = step.times(counted)
            taken = record_task_speed(self._context.cluster, self.step, times)
            curves = {f"milliseconds of a step/{task}": value for task, value in taken.items()}
            self._summaries.add("train", self.step, {**logs, **curves})
            self._throughput.compare(self.step, times)

    def _leaves(self, steps: int = 0) -> bool:
        """Return whether all tasks agree, after an execution, to leave; once they agree, that is final."""
        notice = self._context.notice
        wants = notice.is_received or self._context.server_termination.is_announced
        if notice.is_received and notice.name == "SIGINT" and not self._is_leaving:
            _log.info("SIGINT: saving a checkpoint, then ending; a second SIGINT ends without it")
        self._is_leaving = self._is_leaving or self._agreement.after_execution(wants, steps)
        return self._is_leaving

    def _next_call(self) -> int:
        """Return how many steps the next call takes; a chosen number ends at a point of the curves."""
        every = self._config.summaries.every
        if self._calls.is_fixed or self._context.is_asynchronous:
            return self._calls.number
        return min(self._calls.number, every - self.step % every)

    def _preempted(self) -> Preempted:
        problem = f"a task was told to end; all is saved at step {self.step:,} of {self.total:,}"
        remedy = "The same command with the same --run_dir continues from there"
        return Preempted(self._context.notice.name, problem, remedy=remedy)

    def _evaluate(self, session: Session) -> dict[str, float]:
        if self._testing is None:  # only now, so that the first step does not wait for it
            self._testing = session.testing(self._batches.test)
        batches, callbacks = EpochBatches(self._config.evaluation.batches), self._callbacks
        if callbacks is not None:
            callbacks.before_test()
        record(PhaseBegun(phase="evaluating"))
        # An asynchronous worker fetches the weights once for each call.
        many = max(self._calls.number, _TESTS_IN_A_CALL)
        together = self._config.train.steps_per_execution or many
        results = as_scalars(
            run_tests(self._testing, self._model, batches, leave=self._leaves, together=together)
        )
        record(PhaseBegun(phase="training"))
        if self._is_leaving:
            if callbacks is not None:
                callbacks.leave_test()
            return {}
        check_results(self._model, results)
        if callbacks is not None:
            callbacks.after_test(results)
        if self._summaries is not None:
            self._summaries.add("test", self.step, results)
            self._checkpoint_manager.record_evaluator()
            record(Evaluated(step=self.step, results=dict(results)))
            _log.info("step %d of %d: test %s", self.step, self.total, as_text(results))
        return results


def _next(step: int, total: int, *periods: int) -> int:
    """Return the next step at which something is due."""
    return min(total, *((step // period + 1) * period for period in periods))

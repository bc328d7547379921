"""Write the checkpoints of a call of `fit`, resume from the newest one, and leave together after SIGTERM.

A checkpoint holds the variables, the metrics of the epoch so far, and as facts: the place in the epochs and
in the data, the History, the states of callbacks, and what must stay the same.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tensorflow as tf

from tfdist._utils.keras_2_and_3 import has_call, is_keras_2
from tfdist._utils.keras_private import layers_of
from tfdist._utils.strategy_kinds import has_mirrored_workers, is_asynchronous
from tfdist._utils.tf_private import worker_count
from tfdist.coordination.calls_between_tasks import fetch
from tfdist.coordination.end_announcements import ServerTermination, keep_servers_at_exit
from tfdist.coordination.stop_signals import Notice, handling_stop_signals
from tfdist.errors import ConfigError, Preempted, TaskLost
from tfdist.strategies.current_cluster_and_strategy import is_chief_of
from tfdist.training.checkpoints.checkpoint_callback import CheckpointAndResume
from tfdist.training.checkpoints.checkpoint_facts import Facts, Place, refuse_other
from tfdist.training.checkpoints.checkpoint_files import OF_EPOCH, Checkpoint, check_variables
from tfdist.training.checkpoints.checkpoint_writer import CheckpointWriter
from tfdist.training.checkpoints.fit_hooks import FitHooks
from tfdist.training.checkpoints.lock_folder import locked
from tfdist.training.checkpoints.rounding_errors import collect_rounding_errors
from tfdist.training.checkpoints.share_checkpoint import NO_VALUES, SharedCheckpoint
from tfdist.training.data.check_same_order_on_resume import ResumableData
from tfdist.training.data.distribute import Data
from tfdist.training.epoch_batches import EpochPart, FitSchedule
from tfdist.training.error_messages.lost_task_errors import naming_lost_tasks, servers_needed
from tfdist.training.error_messages.print_uncaught_errors import print_own_errors_in_a_line
from tfdist.training.keras.callback_states import (
    as_plain,
    check_callbacks,
    continue_logs,
    from_plain,
    load_states,
    states_of,
    weights_of,
)
from tfdist.training.keras.datasets_from_inputs import check_seeded, new_seed
from tfdist.training.keras.model_facts import has_own
from tfdist.training.keras.variables_of_run import (
    State,
    learning_rate,
    other_optimizers,
    set_learning_rate,
    variables_of_tensorflow,
)
from tfdist.training.model_session import Phase, Session
from tfdist.training.run_batches import steps_per_execution
from tfdist.training.runners.place_in_data import PlaceInData
from tfdist.training.workers.call_on_chief import call_on_chief
from tfdist.training.workers.exchange_numbers import wait_for_all
from tfdist.training.workers.same_call import check_same_call
from tfdist.training.workers.stop_together import Agreement

_finished_here: set[Path] = set()  # the folders of calls that have returned in this process
# The learning rates that calls of this process have begun with and have left, by folder.
_learning_rates_here: dict[Path, tuple[float | None, float | None]] = {}
_log = logging.getLogger("tfdist")


@contextlib.contextmanager
def open_checkpoints(
    option: CheckpointAndResume | None, model: Any, strategy: tf.distribute.Strategy, callbacks: Sequence[Any]
) -> Iterator[FitHooks]:
    """Find the newest checkpoint, and handle SIGTERM while the block trains, if there is an option.

    Raises:
        Preempted: A task was told to end. A checkpoint is saved if the training had begun.
    """
    if option is None:
        yield FitHooks(model, strategy, callbacks)
        return
    print_own_errors_in_a_line()
    if is_keras_2(model):
        remedy = "Use Keras's BackupAndRestore, which repeats the epoch"
        raise ConfigError("CheckpointAndResume", "needs a model of Keras 3", remedy=remedy)
    check_callbacks(callbacks, model)
    servers = servers_needed(strategy)
    with handling_stop_signals() as notice, naming_lost_tasks("fit", strategy):
        try:
            check_same_call(strategy)
            with (
                _locked_by_chief(option.folder, strategy),
                ServerTermination(servers) as server_termination,
                CheckpointWriter(option.folder, keep=option.keep, background=option.background) as writer,
            ):
                made = FitCheckpoints(option, model, strategy, callbacks, notice, server_termination, writer)
                try:
                    yield made
                except BaseException as error:
                    if not isinstance(error, (TaskLost, tf.errors.OpError)):  # a lost server has no answer
                        made.note_learning_rate()
                    raise
                made.note_learning_rate()
            _finished_here.add(option.folder.absolute())
            notice.raise_if_received()  # after the last checkpoint: a script that starts again continues
        except Preempted:
            keep_servers_at_exit()
            raise


@contextlib.contextmanager
def _locked_by_chief(folder: Path, strategy: tf.distribute.Strategy) -> Iterator[None]:
    with contextlib.ExitStack() as stack:

        def lock() -> None:
            stack.enter_context(locked(folder))

        call_on_chief(strategy, lock, is_chief=is_chief_of(strategy))
        yield


class FitCheckpoints(FitHooks):
    """The checkpoints of a call of `fit`; all tasks call the methods, and only the chief reads and writes."""

    seed: int
    are_saved = True

    def __init__(
        self,
        option: CheckpointAndResume,
        model: Any,
        strategy: tf.distribute.Strategy,
        callbacks: Sequence[Any],
        notice: Notice,
        server_termination: ServerTermination,
        writer: CheckpointWriter,
    ) -> None:
        super().__init__(model, strategy, callbacks)
        self._option, self._writer = option, writer
        self._notice, self._server_termination = notice, server_termination
        self._is_chief = is_chief_of(strategy)
        self._agreement = Agreement(strategy, is_chief=self._is_chief)
        # None where nothing is resumed, and after the first epoch.
        self._resumed = SharedCheckpoint.find(
            option.folder, Facts, strategy, of="fit", is_chief=self._is_chief
        )
        self._values = NO_VALUES
        self._learning_rate: float | None = None
        self.is_leaving = False
        self.step = self._saved_at = 0 if self._resumed is None else self._resumed.facts.place.step
        # Its arrays shuffle by this seed; one of the user's comes first.
        self.seed = new_seed() if self._resumed is None else self._resumed.facts.seed

    def note_learning_rate(self) -> None:
        """Note the learning rate that this call began with, and the one that its callbacks have left."""
        if self._learning_rate is None:
            return
        with contextlib.suppress(tf.errors.OpError):  # its server is gone, if all are told to end
            rates = self._learning_rate, learning_rate(self._model)
            _learning_rates_here[self._option.folder.absolute()] = rates

    def check_order(self, x: Any, *, shuffle: bool | str) -> None:
        """Refuse a PyDataset that is shuffled without a seed."""
        check_seeded(self._model, x, shuffle)

    def checked(self, data: Data, validation_data: Data | None) -> Data:
        """Return the training data, which are refused if their order differs in each process."""
        self._data = ResumableData(data, validation_data)
        return self._data.data

    def attach(
        self,
        session: Session,
        training: Phase,
        testing: Phase | None,
        schedule: FitSchedule,
        batch_size: int | None,
    ) -> None:
        """Compare the run with that of the checkpoint, if there is one, and restore it.

        Raises:
            ConfigError: The checkpoint is one of another model, of other data or of other settings.
        """
        unbuilt = [layer for layer in layers_of(self._model) if not layer.built and layer is not self._model]
        if unbuilt and not has_call(self._model):
            problem = "has layers that are not built, so a checkpoint could not restore their weights"
            remedy = "Call them on a batch before fit, or begin each with keras.Input"
            raise ConfigError(f"model {self._model.name}", problem, remedy=remedy)
        self._training = training
        self._position, self._part = schedule.batches.position, EpochPart()
        self._tests = self._epoch = 0
        others = [
            *session.random_states,
            *other_optimizers(self._model, has_own_step=has_own(self._model, "train_step")),
            *variables_of_tensorflow(self._model),
        ]
        self._state = State(self._model, self._strategy, others, has_learning_rate=True)
        begun_with, left_with = _learning_rates_here.get(self._option.folder.absolute(), (None, None))
        now = learning_rate(self._model)
        # The rate that callbacks have left in this process is not one that the script sets.
        self._learning_rate = begun_with if now == left_with else now
        self._identity = {**self._setup(schedule, batch_size), **self._data.identity}
        if self._option.every is not None:
            training.runner.rest_every(self._option.every, self.step)
        if self._resumed is None:
            return
        self._resumed.check(self._check_same)
        self._values = self._resumed.read()
        self._restore_variables(self._resumed.facts)
        place = self._resumed.facts.place
        training.runner.resume(place.data, again=self._data.reads_again)
        if testing is not None and place.tests:
            begun = place.tests * testing.runner.begins_of_epoch(schedule.test_batches.steps)
            testing.runner.resume(PlaceInData(begun, taken=0, is_open=False), again=False)
        self._tests = place.tests
        if self._position is not None:
            self._position.size, self._position.seen = place.size, place.seen
        self._epoch = place.epoch

    def _setup(self, schedule: FitSchedule, batch_size: int | None) -> dict[str, Any]:
        """Return what of the model, the cluster and the arguments must stay the same."""
        are_apart = is_asynchronous(self._strategy)
        setup: dict[str, Any] = {
            "the optimizer": type(self._model.optimizer).__name__,
            "steps_per_execution": steps_per_execution(self._model),
            "the strategy": "parameter_server" if are_apart else "one that works in step",
        }
        if are_apart or self._data.is_function:  # each pipeline has a part of the data
            has_workers = are_apart or has_mirrored_workers(self._strategy)
            workers = worker_count(self._strategy) if has_workers else 1
            setup["the number of workers"] = f"{workers}, {self._strategy.num_replicas_in_sync} replicas"
        batches = schedule.batches
        arguments = {"steps_per_epoch": batches.steps, "batch_size": batch_size, "repeat": batches.repeats}
        return {**setup, **arguments}

    def _check_same(self, found: Checkpoint) -> None:
        """Raise ConfigError for a checkpoint of another model, of other data or of other settings."""
        refuse_other(str(found.folder), found.facts["identity"], self._identity)
        remedy = "Name another folder, or use the same model"
        whose = "the model of this script"
        check_variables(found, self._state.values(), whose=whose, remedy=remedy)

    def _restore_variables(self, facts: Facts) -> None:
        self._state.assign(self._values.state)
        if self._learning_rate not in (None, facts.learning_rate):  # the one that the script sets now
            set_learning_rate(self._model, self._learning_rate)

    def _restore(self, facts: Facts) -> None:
        """Restore the variables, and the states of callbacks."""
        self._restore_variables(facts)
        load_states(self._callbacks, self._model, facts.callbacks, self._values.of_callbacks)

    # -- when training begins --

    def begin(self, calls: Any, *, epochs: int, initial_epoch: int, steps: int | None) -> int:
        """Call the callbacks at the beginning, set their states and the History; return the first epoch."""
        if self._resumed is None:
            begun = super().begin(calls, epochs=epochs, initial_epoch=initial_epoch, steps=steps)
            states_of(self._callbacks, self._model)  # an error is raised now, and on all tasks
            return begun
        facts = self._resumed.facts
        is_finished = facts.is_stopped or facts.place.epoch >= epochs
        if self._is_chief:
            continue_logs(self._callbacks, self._model, [] if is_finished else facts.callbacks)
        calls.on_train_begin()
        history = self._model.history
        history.epoch = list(facts.epochs)
        history.history = {name: from_plain(values) for name, values in facts.history.items()}
        self._restore(facts)
        if is_finished:
            if self._option.folder.absolute() in _finished_here:
                problem = "holds the training of an earlier fit of this process, which is finished"
                remedy = "Name another folder for this fit, or pass more epochs to continue"
                raise ConfigError(str(self._option.folder), problem, remedy=remedy)
            reason = "a callback had ended it" if facts.is_stopped else f"{epochs} epochs are done"
            self._say("fit: nothing is left to train: %s at step %d, says %s", reason, self.step)
            return epochs
        self._say("fit: resuming at step %d, in epoch %d, from %s", self.step, facts.place.epoch + 1)
        return facts.place.epoch

    @property
    def logs(self) -> dict[str, Any]:
        """Return the logs of the last epoch, or of the part of it that is done."""
        return {} if self._resumed is None else from_plain(self._resumed.facts.logs)

    @property
    def done_of_first_epoch(self) -> int:
        """Return how many steps of the epoch that is resumed are done."""
        place = None if self._resumed is None else self._resumed.facts.place
        return place.done if place is not None and place.is_within else 0

    def _say(self, text: str, *values: Any) -> None:
        if self._is_chief:
            _log.warning(text, *values, self._option.folder)

    # -- in an epoch --

    def begin_epoch(self, epoch: int) -> EpochPart:
        """Return the part of an epoch that is done; call this after the callbacks of its beginning.

        In a resumed epoch, those callbacks have been called before: what they change is restored.
        """
        self._epoch, self._part = epoch, EpochPart()
        facts = None if self._resumed is None else self._resumed.facts
        if facts is not None and facts.place.is_within and facts.place.epoch == epoch:
            self._restore(facts)
            totals = self._training.step.resumed(self._values.totals)
            place = facts.place
            logs = from_plain(facts.logs)
            self._part = EpochPart(place.done, place.index, totals, logs, is_over=place.is_over)
        self._begun_at = self.step - self._part.done
        if self._option.every is not None:
            self._training.runner.rest_every(self._option.every, self.step)
        return self._part

    def after_execution(self) -> None:
        """Save if it is time, or begin to leave if a task was told to end."""
        self._count()
        if self._part.is_leaving:
            return
        if self.leaves():
            self._part.is_leaving = True
            self._training.runner.wind_up()
        elif self._is_due and self._training.runner.is_at_rest:
            self._save(self._kept, self._part.logs)

    def _count(self) -> None:
        self.step = self._begun_at + self._part.done

    @property
    def _is_due(self) -> bool:
        every = self._option.every
        return every is not None and self.step // every > self._saved_at // every

    def leaves(self) -> bool:
        """Return whether all tasks agree to leave; once they agree, that is final."""
        wants = self._notice.is_received or self._server_termination.is_announced
        self.is_leaving = self.is_leaving or self._agreement.after_execution(wants)
        return self.is_leaving

    def after_batches(self) -> None:
        """Save and leave, if that was agreed; remember the metrics, which an evaluation may reset."""
        self._count()
        self._kept_before_tests = self._kept
        if self.is_leaving:
            self._save(self._kept, self._part.logs)
            self._leave()

    def after_tests(self) -> None:
        """Save and leave, if that was agreed within an evaluation, which a resumed run does again."""
        if self.is_leaving:
            self._part.is_over = self._identity["steps_per_epoch"] is not None  # which the data may not have
            self._save(self._kept_before_tests, self._part.logs)
            self._leave()
        self._tests += 1

    def after_epoch(self, logs: Mapping[str, Any], *, is_last: bool, is_stopped: bool) -> None:
        """Save at the end of an epoch, if there is no other time for it, or if it is the last one."""
        self._epoch += 1
        self._resumed, self._values = None, NO_VALUES
        if is_last or self._option.every is None:
            self._save(None, logs, is_stopped=is_stopped)

    @property
    def _kept(self) -> list[Any]:
        return [] if self._part.totals is None else self._training.step.kept(self._part.totals)

    def deferring(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which SIGTERM is recorded, until the tasks agree to leave."""
        return self._notice.deferred()

    def _leave(self) -> None:
        self._writer.wait()
        wait_for_all(self._strategy)  # until the chief has saved
        problem = f"a task was told to end; all is saved at step {self.step} in {self._option.folder}"
        raise Preempted(self._notice.name, problem, remedy="The same script continues from there")

    def _save(
        self, metrics: Sequence[Any] | None, logs: Mapping[str, Any], *, is_stopped: bool = False
    ) -> None:
        """Write a checkpoint on the chief; `metrics` are None at the end of an epoch."""
        self._saved_at = self.step
        files = collect_rounding_errors(self._strategy, is_chief=self._is_chief)
        history = self._model.history
        facts = Facts(
            identity=self._identity,
            place=self._place(is_within=metrics is not None),
            logs=as_plain(dict(logs), "the logs"),
            history=as_plain(history.history, "the History"),
            epochs=[int(epoch) for epoch in history.epoch],
            callbacks=states_of(self._callbacks, self._model),
            learning_rate=self._learning_rate,
            seed=self.seed,
            is_stopped=is_stopped,
        )  # on all tasks: the chief alone would raise an error
        if not self._is_chief:
            return
        values = self._state.values()
        values |= {f"{OF_EPOCH}{number}": fetch(value) for number, value in enumerate(metrics or ())}
        values |= weights_of(self._callbacks)
        self._writer.save(self.step, values, msgspec.to_builtins(facts), files=files)

    def _place(self, *, is_within: bool) -> Place:
        position, data = self._position, self._training.runner.place()
        if not is_within and self._identity["steps_per_epoch"] is None:
            data.is_open = False  # the next epoch begins the data again
        return Place(
            step=self.step,
            epoch=self._epoch,
            is_within=is_within,
            done=self._part.done if is_within else 0,
            index=self._part.index if is_within else 0,
            data=data,
            size=None if position is None else position.size,
            seen=0 if position is None else position.seen,
            tests=self._tests,
            is_over=is_within and self._part.is_over,
        )

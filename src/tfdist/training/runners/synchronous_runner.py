"""Run the steps of an epoch on replicas that work in step."""

from collections.abc import Callable, Generator
from typing import Any

import tensorflow as tf

from tfdist._utils.tf_private import function_of_a_model
from tfdist.coordination.stall_limit import Activity
from tfdist.coordination.stall_watch import doing
from tfdist.errors import DataError
from tfdist.training.data.dataset_workarounds import untuned_on_devices
from tfdist.training.data.python_data_of_workers import compare_batches, is_power_of_two
from tfdist.training.runners.multi_step import Totals, make_execution
from tfdist.training.runners.place_in_data import PlaceInData

_ALL = 2**31 - 1
_OPENING = Activity("opening its data")
_LEAVING_OUT = Activity("reading the data that an earlier process has read")


class SynchronousRunner:
    """A runner of executions, of K steps, over a distributed data set.

    Attributes:
        waited: The seconds that this process's steps have waited for data.
        settle_writes: Waits until the next execution reads what this process has written.
    """

    def __init__(
        self,
        execute: Callable[..., Any],
        dataset: Any,
        *,
        step: str,
        settle_writes: Callable[[], None],
        begins_again_after: int | None = None,
    ) -> None:
        """Prepare to run an execution over distributed data.

        Args:
            execute: A function, or the graph of one, of an iterator, a number of steps and the totals before
                them. It returns the steps taken, the totals, and the seconds that it waited for data.
            dataset: The distributed data set.
            step: What to call a step when one does not end.
            settle_writes: A function that waits until an execution reads what this process has written.
            begins_again_after: The number of batches after which the data have ended and begin once more, as
                in Keras 3, so that a shuffle draws the same orders; None if that changes nothing.
        """
        self.settle_writes = settle_writes
        self._activity = Activity(f"in {step} (reading its data, or computing)", "step")
        self._execute = execute
        self._dataset = dataset
        self._iterator: Any = None
        self._is_winding_up = False
        self._begun = self._taken = 0  # how often the data have begun, and the batches taken since then
        self._begins_again_after = begins_again_after
        self._executions = 0  # since the data have begun
        self._unread = 0  # how often the data have begun besides, at the end of a pass over all of them
        self._is_resumed = False
        self.is_at_rest = True
        self.waited = 0.0

    def trace(self, iterator_spec: Any, totals: Totals) -> None:
        """Trace the graph for all iterators of a spec, also for those whose batches have fixed sizes."""
        if hasattr(self._execute, "get_concrete_function"):
            self._execute.get_concrete_function(iterator_spec, tf.TensorSpec([], tf.int32), totals)

    def place(self) -> PlaceInData:
        """Return the place in the data: the number of passes begun, and of batches taken in the last one."""
        return PlaceInData(self._begun, self._taken, self._iterator is not None, self._unread)

    def resume(self, place: PlaceInData, *, again: bool) -> None:
        """Continue in the data at a place where an earlier process was.

        A shuffle draws new seeds whenever the data begin, so they begin as often as they did.

        Raises:
            DataError: The data end before this place.
        """
        *earlier, last = range(place.begun) or [-1]
        for number in earlier:
            self._begin_data()
            if again:
                self._leave_out(_ALL)
            if number < place.unread:  # each is after one of the first passes
                self._begin_unread()
        if last < 0:
            return
        self._begin_data()
        if again or place.is_open:
            self._leave_out(place.taken if place.is_open else _ALL)
        if last < place.unread and not place.is_open:  # else the epoch ends once more
            self._begin_unread()
        if place.is_open and self._taken < place.taken:
            problem = f"ended after {self._taken} batches, but training has taken {place.taken} of them"
            raise DataError("the training data", problem, remedy="Pass the same data to resume")
        self._is_resumed = place.is_open
        if not self._is_resumed:
            self._iterator = None

    def rest_every(self, steps: int, done: int) -> None:
        """Do nothing: an execution is over before the next one starts."""

    def rewind(self, dataset: Any = None) -> None:
        """Start the next epoch at the beginning of the data, or of other data distributed in the same way."""
        self._dataset = self._dataset if dataset is None else dataset
        self._iterator = None

    def epoch(
        self,
        steps: int | None,
        steps_per_execution: Callable[[], int],
        totals: Totals,
        *,
        repeats: bool = True,
    ) -> Generator[tuple[int, Totals], None, None]:
        """Run one epoch; yield after each execution how many steps it took, and the totals so far.

        With a number of steps, an epoch continues in the data where the last epoch ended. If the data end
        first, the epoch begins them again if `repeats`, and ends otherwise. Without a number of steps, an
        epoch is the data set. `steps_per_execution` returns how many steps the next execution takes.
        """
        self.settle_writes()
        if self._iterator is None or (steps is None and not self._is_resumed):
            self._begin_data()
        self._is_resumed = False
        done, is_fresh, self._is_winding_up = 0, steps is None, False
        while not self._is_winding_up and (steps is None or done < steps):
            wanted = steps_per_execution()
            wanted = wanted if steps is None else min(wanted, steps - done)
            with doing(self._activity):
                ran, totals, waited = self._execute(self._iterator, tf.constant(wanted), totals)
            ran, self.waited = int(ran), self.waited + float(waited)
            self._taken += ran
            self._executions += 1
            if ran < wanted or done + ran == steps or is_power_of_two(self._executions):
                compare_batches(self._dataset, self._taken)
            if ran:
                done += ran
                yield ran, totals
            if ran == wanted:
                is_fresh = False
                continue
            if steps is None or (is_fresh and not ran):  # the data have ended, or there are none
                if steps is None and self._begins_again_after is not None:
                    self._begin_unread()
                return
            if done and not repeats:
                self._iterator = None
                return
            self._begin_data()
            is_fresh = True

    def wind_up(self) -> None:
        """End the running epoch here: an execution is over before the next one starts."""
        self._is_winding_up = True

    def begin_again(self) -> None:
        """Begin the data again if they have ended, as Keras 3 does once an epoch of some steps is over."""
        if self._begins_again_after is not None and self._taken >= self._begins_again_after:
            self._begin_data()

    def begins_of_epoch(self, steps: int | None) -> int:
        """Return how often an epoch that is not continued begins the data."""
        size = self._begins_again_after
        return 1 if size is None or (steps is not None and steps < size) else 2

    def _begin_data(self) -> None:
        self._begun, self._taken, self._executions = self._begun + 1, 0, 0
        self._iterator = self._opened()

    def _begin_unread(self) -> None:
        self._unread += 1
        self._opened()

    def _opened(self) -> Any:
        with doing(_OPENING), untuned_on_devices():
            return iter(self._dataset)

    def _leave_out(self, batches: int) -> None:
        """Leave batches out, up to the end of the data."""
        nothing = Totals((), tf.zeros([]))
        with doing(_LEAVING_OUT):
            ran, _, _ = _leave_out(self._iterator, tf.constant(batches), nothing)
        self._taken += int(ran)


_leave_out = function_of_a_model(make_execution(lambda batch, totals: totals))

"""Send variables and gradients between workers and parameter servers over the TCP transport, not gRPC.

TensorFlow sends each tensor that one task computes and another one needs in a call of its own. Here few
messages have all variables that a worker needs of one server, and few have all of their gradients. A pair of
operations for each message, one on each task, replaces many edges of the graph. Variables, optimizers and
updates do not change.
"""

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist._utils.indices_by_key import indices_by_key
from tfdist.cluster.addresses_and_free_ports import split_address
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination.calls_between_tasks import call, call_each, token
from tfdist.errors import TaskLost
from tfdist.strategies.plan_buckets import BucketBytes, plan_buckets, plan_from_last
from tfdist.transport.listen_and_call import ConnectError
from tfdist.transport.worker_and_ps_ends import named, written_addresses
from tfdist.transport.worker_and_ps_messages import Manifest

_SECONDS_TO_ANSWER = 60.0  # a worker gives a connection to a server up before
_ASKED_AT_ONCE = 32  # workers that connect to one server: half of those that it has a place for
_MOST_NAMED = 3


class PsTransfer:
    """The transfer of tensors in a cluster whose chief makes the graphs.

    Attributes:
        is_asked_for: Whether the user requires the TCP transport.
        is_encrypted: Whether the connections are encrypted by TLS.
        bucket_bytes: The bytes after which a bucket of variables is full.
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        *,
        wire_type: str,
        is_in_step: bool,
        timeout: float | None,
        is_asked_for: bool,
        is_encrypted: bool,
    ) -> None:
        """Connect all workers to all servers.

        Raises:
            ConnectError: A worker and a server cannot connect.
        """
        self.is_asked_for, self.is_encrypted = is_asked_for, is_encrypted
        self._wire_type, self._is_in_step, self._timeout = wire_type, is_in_step, timeout
        # Servers and workers may outlast a chief. Each chief has names of its own, so that no message adds
        # to the rounding errors of steps that this chief has rolled back.
        self._numbers, self._start = itertools.count(), os.urandom(4).hex()
        self._cluster, self._servers = cluster, [Task("ps", index) for index in range(cluster.size("ps"))]
        hosts = {task.index: split_address(cluster.address(task))[0] for task in self._servers}
        ports = self._ask(self._servers, lambda task: _port_of(task, is_encrypted=is_encrypted))
        # Through shared memory, all variables are there at once.
        is_one_machine = len({split_address(cluster.address(task))[0] for task in cluster.tasks()}) == 1
        no_buckets = BucketBytes(sys.maxsize, sys.maxsize)
        self.bucket_bytes = no_buckets if is_one_machine and not is_asked_for else BucketBytes()
        servers = {task.index: (hosts[task.index], ports[task]) for task in self._servers}
        self._addresses = written_addresses(servers, is_encrypted=is_encrypted, is_in_step=is_in_step)
        workers = [Task("worker", index) for index in range(cluster.size("worker"))]
        self._ask(workers, lambda task: _connect(task, self._addresses))

    @property
    def bytes_sent(self) -> int:
        """Return how many bytes all tasks have sent, as the servers' sockets count them."""
        moved = self._ask(self._servers, lambda task: int(_call_endpoint(task, "moved", tf.int64)))
        return sum(moved.values())

    def _ask(self, tasks: Sequence[Task], question: Callable[[Task], int]) -> dict[Task, int]:
        """Return the answers of tasks that are asked side by side: a call to a silent task never returns.

        Raises:
            TaskLost: A task has not answered in time.
            ConnectError: As the question raises it.
        """
        answers: dict[Task, int] = {}
        for begin in range(0, len(tasks), _ASKED_AT_ONCE):
            asked = tasks[begin : begin + _ASKED_AT_ONCE]
            outcomes = call_each(lambda task: _outcome(question, task), asked, _SECONDS_TO_ANSWER)
            if silent := [task for task in asked if task not in outcomes]:
                names = " and ".join(map(self._cluster.with_address, silent[:_MOST_NAMED]))
                more = f" and {len(silent) - _MOST_NAMED} more" if len(silent) > _MOST_NAMED else ""
                problem = f"waited {_SECONDS_TO_ANSWER:g} s for an answer of {names}{more}"
                raise TaskLost("the TCP transport", problem, remedy="Its own log may say why; start it again")
            for task, outcome in outcomes.items():
                if isinstance(outcome, Exception):
                    raise outcome
                answers[task] = outcome
        return answers

    def transfer(self, variables: Sequence[Any]) -> "StepTransfer":
        """Start a step in the graph of a worker that needs these variables."""
        return StepTransfer(variables, self._addresses, self._manifest, self.bucket_bytes)

    def _manifest(self, server: int, tensors: Sequence[tf.Tensor], *, is_state: bool) -> tf.Tensor:
        dtypes = tuple(tensor.dtype.name for tensor in tensors)
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        name = f"{'down' if is_state else 'up'} {next(self._numbers)} of {self._start}"
        # An explicit tcp means bytes on the wire, also on one machine.
        types = self._wire_type, is_state, self._is_in_step, not self.is_asked_for, self._timeout
        return tf.constant(Manifest(name, server, dtypes, shapes, *types).written())


class StepTransfer:
    """One step of a worker, in its graph.

    Attributes:
        values: The values of the variables, on the worker.
    """

    def __init__(
        self,
        variables: Sequence[Any],
        addresses: bytes,
        manifest: Callable[..., tf.Tensor],
        bucket_bytes: BucketBytes,
    ) -> None:
        self._manifest, self._bucket_bytes = manifest, bucket_bytes
        [self._ticket] = tf.raw_ops.PyFunc(
            input=[tf.constant(addresses)], token=token(named("begin")), Tout=[tf.int64]
        )
        self._ticket.set_shape([3])
        self._sent: dict[int, tf.Tensor] = {}
        self._returned: set[int] = set()  # the servers that get gradients
        self.values: list[Any] = [None] * len(variables)
        for server, places in _by_server(variables).items():
            mine = [variables[place] for place in places]
            values = self._fetch_variables(server, mine)
            for place, value in zip(places, values, strict=True):
                self.values[place] = value

    def delivered(
        self, gradients: Sequence[tf.Tensor], variables: Sequence[Any], *, device: str | None = None
    ) -> list[tf.Tensor]:
        """Send gradients to the servers of their variables; return them as tensors of these servers.

        `device` is where the gradients are, if that is not the current device.
        """
        delivered: list[Any] = [None] * len(variables)
        for server, places in _by_server(variables).items():
            # tf.device(None) would clear the device, so that the chief's would be used.
            with contextlib.nullcontext() if device is None else tf.device(device):
                values = self._send_gradients(
                    server, [gradients[place] for place in places], [variables[place] for place in places]
                )
            for place, value in zip(places, values, strict=True):
                delivered[place] = value
        return delivered

    def send_unreturned(self) -> None:
        """Make the graph send also variables whose gradients return in another way, or not at all.

        TensorFlow drops an operation whose result nothing uses, and the worker would wait forever.
        """
        for server, sent in self._sent.items():
            if server not in self._returned:
                with tf.device(Task("ps", server).cpu):
                    tf.raw_ops.Assert(condition=tf.equal(sent, 0), data=[sent])

    def _fetch_variables(self, server: int, variables: Sequence[Any]) -> list[tf.Tensor]:
        """Fetch variables in buckets, so that the first layers need not wait for those of the last ones."""
        came: list[tf.Tensor] = []
        for bucket in plan_buckets(list(map(_type_and_bytes, variables)), self._bucket_bytes):
            # Both ends take the buckets in one order. Data order them: TensorFlow would drop a stateless
            # operation on which others only wait.
            with tf.device(Task("ps", server).cpu):
                values = [variables[number].read_value() for number in bucket]
                ticket = self._ticket + self._sent[server] if came else self._ticket
                manifest = self._manifest(server, values, is_state=True)
                self._sent[server] = _call("send", [manifest, ticket, *values], [tf.int64])[0]
            inputs, dtypes = [manifest, self._ticket, *came[-1:]], [value.dtype for value in values]
            came += _shaped(_call("receive", inputs, dtypes), values)
        return came

    def _send_gradients(
        self, server: int, gradients: Sequence[tf.Tensor], variables: Sequence[Any]
    ) -> list[tf.Tensor]:
        """Send gradients in buckets: the backward pass computes those of the last layers first."""
        self._returned.add(server)
        # TensorFlow does not infer the shape of every gradient, such as that of a product of 3-D inputs.
        _shaped(gradients, variables)
        delivered: list[Any] = [None] * len(gradients)
        # The server receives only after it has sent the variables.
        ready, before = self._ticket, self._sent[server]
        for places in plan_from_last(list(map(_type_and_bytes, gradients)), self._bucket_bytes):
            mine = [gradients[place] for place in places]
            manifest = self._manifest(server, mine, is_state=False)
            # hand_over returns the ticket when the gradients are ready, so no thread of the server waits
            # while the worker computes. Both ends take the buckets in one order.
            [ready] = _call("hand_over", [manifest, ready, *mine], [tf.int64])
            with tf.device(Task("ps", server).cpu):
                dtypes = [gradient.dtype for gradient in mine]
                came = _shaped(_call("receive", [manifest, ready, before], dtypes), mine)
            before = came[0]
            for place, gradient in zip(places, came, strict=True):
                delivered[place] = gradient
        return delivered


def _type_and_bytes(tensor: Any) -> tuple[None, int]:
    """Return what `plan_buckets` asks for; a message may have several types."""
    return None, tensor.dtype.size * tensor.shape.num_elements()


def _call(name: str, inputs: Sequence[tf.Tensor], dtypes: Sequence[tf.DType]) -> list[tf.Tensor]:
    # A stateful operation would wait for earlier operations of the program, which here run on other tasks:
    # the worker's would wait for the server's, and the server's for the worker's. Data dependencies order
    # these operations instead, and the update depends on all of them.
    results: list[tf.Tensor] = tf.raw_ops.PyFuncStateless(input=inputs, token=token(named(name)), Tout=dtypes)
    return results


def _shaped(came: Sequence[tf.Tensor], like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    for tensor, template in zip(came, like, strict=True):
        tensor.set_shape(template.shape)
    return list(came)


def _by_server(variables: Sequence[Any]) -> dict[int, list[int]]:
    """Return, for each server, the positions of the variables that it holds."""
    return indices_by_key(tf.DeviceSpec.from_string(variable.handle.device).task for variable in variables)


def _outcome(question: Callable[[Task], int], task: Task) -> int | Exception:
    try:
        return question(task)
    except (ConnectError, tf.errors.OpError) as error:  # the caller raises it
        return error


def _connect(worker: Task, addresses: bytes) -> int:
    """Tell a worker to connect to all servers."""
    if why := _call_endpoint(worker, "connect", tf.string, addresses):
        raise ConnectError(f"{worker} has no connection to {why.decode()}")
    return 0


def _port_of(server: Task, *, is_encrypted: bool) -> int:
    """Tell a server to accept workers; return its port."""
    answer: bytes = _call_endpoint(server, "listen", tf.string, b"tls" if is_encrypted else b"")
    if not answer.isdigit():
        raise ConnectError(f"{server}: {answer.decode()}")
    return int(answer)


def _call_endpoint(task: Task, name: str, dtype: tf.DType, *inputs: bytes) -> Any:
    """Call a function of another task's endpoint."""
    try:
        return call(task, named(name), dtype, *inputs)
    except (tf.errors.InvalidArgumentError, tf.errors.UnknownError, tf.errors.InternalError) as error:
        why = "it has no secret, or runs another version of tfdist"
        raise ConnectError(f"{task}: {why} ({str(error).strip().splitlines()[-1]})") from error

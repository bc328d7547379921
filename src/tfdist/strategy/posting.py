"""Let variables and gradients cross between workers and parameter servers by the post, and not by gRPC.

TensorFlow sends each tensor that one task computes and another one needs in a call of its own. Here all that
a worker needs of one server goes in one parcel, and so do its gradients: a pair of operations, one on either
task, takes the place of many edges. Variables, optimizers and updates stay where they are, and as they are.
"""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.addresses import split_address
from tfdist.calls import ask, token
from tfdist.cluster import ClusterConfig, Task
from tfdist.exchange import Manifest, Unmet, named, written_addresses

__all__ = ["Crossing", "Posting"]

_SERVER = "/job:ps/replica:0/task:{}/device:CPU:0"


class Posting:
    """Know the post of a cluster, whose chief makes the graphs.

    Attributes:
        is_asked_for: Whether the user has said so, and nothing else will do.
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        *,
        wire_type: str,
        is_in_step: bool,
        timeout: float | None,
        is_asked_for: bool,
    ) -> None:
        """Let all workers meet all servers.

        Raises:
            Unmet: A worker and a server have not met.
        """
        self.is_asked_for = is_asked_for
        self._wire_type, self._is_in_step, self._timeout = wire_type, is_in_step, timeout
        self._numbers = itertools.count()
        self._servers = range(cluster.size("ps"))
        hosts = {index: split_address(cluster.address(("ps", index)))[0] for index in self._servers}
        ports = {index: _asked(Task("ps", index), "port", tf.int64) for index in self._servers}
        self._addresses = written_addresses({index: (hosts[index], int(ports[index])) for index in hosts})
        for index in range(cluster.size("worker")):
            why = _asked(Task("worker", index), "meet", tf.string, self._addresses)
            if why:
                raise Unmet(f"worker:{index} has not met {why.decode()}")

    @property
    def bytes_sent(self) -> int:
        """Give how many bytes all tasks have sent, as the servers' sockets have counted them."""
        return sum(int(_asked(Task("ps", index), "moved", tf.int64)) for index in self._servers)

    def crossing(self, variables: Sequence[Any]) -> "Crossing":
        """Begin a step in the graph of a worker, which needs these variables."""
        return Crossing(variables, self._addresses, self._manifest)

    def _manifest(self, server: int, tensors: Sequence[tf.Tensor], *, is_state: bool) -> tf.Tensor:
        dtypes = tuple(each.dtype.name for each in tensors)
        shapes = tuple(tuple(each.shape) for each in tensors)
        name = f"{'down' if is_state else 'up'} {next(self._numbers)}"
        # Who asks for TCP wants the bytes on the wire, on one machine too.
        types = self._wire_type, is_state, self._is_in_step, not self.is_asked_for, self._timeout
        return tf.constant(Manifest(name, server, dtypes, shapes, *types).written())


class Crossing:
    """Be one step of a worker, in its graph.

    Attributes:
        values: The variables, as they have come to the worker.
    """

    def __init__(
        self, variables: Sequence[Any], addresses: bytes, manifest: Callable[..., tf.Tensor]
    ) -> None:
        self._manifest = manifest
        [self._ticket] = tf.raw_ops.PyFunc(
            input=[tf.constant(addresses)], token=token(named("begin")), Tout=[tf.int64]
        )
        self._ticket.set_shape([3])
        self._sent: dict[int, tf.Tensor] = {}
        self._returned: set[int] = set()  # the servers to which gradients have gone
        self.values: list[Any] = [None] * len(variables)
        for server, places in _by_server(variables).items():
            mine = [variables[place] for place in places]
            came = self._down(server, mine)
            for place, value in zip(places, came, strict=True):
                self.values[place] = value

    def delivered(
        self, gradients: Sequence[tf.Tensor], variables: Sequence[Any], *, device: str | None = None
    ) -> list[tf.Tensor]:
        """Bring gradients to the servers of their variables, from a device if it is not the current one.

        Give them there.
        """
        found: list[Any] = [None] * len(variables)
        for server, places in _by_server(variables).items():
            # (tf.device(None) would be no device, and so the chief's.)
            with contextlib.nullcontext() if device is None else tf.device(device):
                came = self._up(server, [gradients[place] for place in places])
            for place, value in zip(places, came, strict=True):
                found[place] = value
        return found

    def tie(self) -> None:
        """Have variables sent whose gradients come back in another way, or not at all.

        TensorFlow drops an operation that nothing needs, and the worker would wait for ever.
        """
        for server, sent in self._sent.items():
            if server not in self._returned:
                with tf.device(_SERVER.format(server)):
                    tf.raw_ops.Assert(condition=tf.equal(sent, 0), data=[sent])

    def _down(self, server: int, variables: Sequence[Any]) -> list[tf.Tensor]:
        with tf.device(_SERVER.format(server)):
            values = [each.read_value() for each in variables]
            manifest = self._manifest(server, values, is_state=True)
            self._sent[server] = _post("send", [manifest, self._ticket, *values], [tf.int64])[0]
        return _shaped(_post("receive", [manifest, self._ticket], [each.dtype for each in values]), values)

    def _up(self, server: int, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        self._returned.add(server)
        manifest = self._manifest(server, gradients, is_state=False)
        # The ticket comes out when the gradients are there: so no thread of the server waits for a worker
        # that computes. It goes down after the variables, which the server has sent then.
        [ready] = _post("hand_over", [manifest, self._ticket, *gradients], [tf.int64])
        with tf.device(_SERVER.format(server)):
            inputs = [manifest, ready, self._sent[server]]
            return _shaped(_post("receive", inputs, [each.dtype for each in gradients]), gradients)


def _post(name: str, inputs: Sequence[tf.Tensor], dtypes: Sequence[tf.DType]) -> list[tf.Tensor]:
    # A stateful operation would wait for those before it in the program, which here are on other tasks: the
    # worker's end for the server's, which itself waits for the worker's. What orders them is what they need,
    # and the update at last needs all of them.
    found: list[tf.Tensor] = tf.raw_ops.PyFuncStateless(input=inputs, token=token(named(name)), Tout=dtypes)
    return found


def _shaped(came: Sequence[tf.Tensor], like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    for each, other in zip(came, like, strict=True):
        each.set_shape(other.shape)
    return list(came)


def _by_server(variables: Sequence[Any]) -> dict[int, list[int]]:
    """Say which of the variables each server holds."""
    found: dict[int, list[int]] = {}
    for place, each in enumerate(variables):
        spec = tf.DeviceSpec.from_string(each.handle.device)
        found.setdefault(spec.task, []).append(place)
    return found


def _asked(task: Task, name: str, dtype: tf.DType, *inputs: bytes) -> Any:
    """Call a function of another task's post."""
    try:
        return ask(task, named(name), dtype, *inputs)
    except (tf.errors.InvalidArgumentError, tf.errors.UnknownError, tf.errors.InternalError) as error:
        why = "it has no secret, or its program is no tfdist of this version"
        raise Unmet(f"{task}: {why} ({str(error).strip().splitlines()[-1]})") from error

"""Fetch the variables of a Keras 3 model to a worker over the TCP transport, and send its gradients back."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist._utils.tf_private import variables_without_tensors
from tfdist.strategies.ps_transfer import PsTransfer, StepTransfer
from tfdist.training.parameter_servers.sharded_keras_variables import parts_of, put_together
from tfdist.training.replicas.reduction import summed_apart


class PsVariables:
    """The variables of a model to transfer, and the start of the transfer for one step.

    Variables that a model reads by rows are not transferred: TensorFlow sends only the rows that a step
    needs. Sparse gradients show which variables these are. Nor are those that a function with a gradient of
    its own reads, which would return none for a fetched value.
    """

    def __init__(self, ps_transfer: PsTransfer, variables: Sequence[Any]) -> None:
        """Store the strategy's `ps_transfer`, and the trained variables, each whole and not as shards."""
        self._ps_transfer, self._variables = ps_transfer, list(variables)
        self._transfer: list[Any] | None = None  # the variables to transfer

    def settle(self, gradients: Callable[[], Sequence[Any]]) -> None:
        """Find out which variables to transfer, from the gradients of all parts in a throw-away graph."""
        if self._transfer is not None:
            return
        traced: list[Any] = []
        with variables_without_tensors() as read_in_place:
            tf.function(
                lambda: traced.extend(map(_of_first, gradients())), autograph=False
            ).get_concrete_function()
        handles = {id(variable.handle) for variable in read_in_place}
        # (Not tf.is_tensor, which is true for a sparse gradient too.)
        parts = parts_of(self._variables)
        is_dense = {
            id(part): isinstance(gradient, tf.Tensor) and id(part.value.handle) not in handles
            for part, gradient in zip(parts, traced, strict=True)
        }
        self._transfer = [
            variable
            for variable in self._variables
            if all(is_dense[id(part)] for part in parts_of([variable]))
        ]

    def begin(self) -> "FetchedVariables | None":
        """Start the transfer of the variables in the graph of a worker; return None if there are none."""
        variables = self._transfer or []
        if not variables:
            return None
        parts = parts_of(variables)
        transfer = self._ps_transfer.transfer([part.value for part in parts])
        return FetchedVariables(transfer, variables, parts, parts_of(self._variables))


class FetchedVariables:
    """The variables that a worker has fetched for one step."""

    def __init__(
        self, transfer: StepTransfer, variables: Sequence[Any], parts: Sequence[Any], all_parts: Sequence[Any]
    ) -> None:
        self._transfer, self._variables, self._parts = transfer, variables, all_parts
        self._leaving: list[Any] = []  # the variables whose gradients are sent together
        self._values = dict(zip(map(id, parts), transfer.values, strict=True))
        self._own = {id(part.value) for part in parts}

    def watched(self, tape: tf.GradientTape) -> list[tuple[Any, tf.Tensor]]:
        """Make a tape watch the fetched values; return the variables with their values."""
        tape.watch(list(self._values.values()))
        return [(variable, self._put_together(variable)) for variable in self._variables]

    def source(self, part: Any) -> Any:
        """Return the source of a part's gradient: the part's fetched value, or the variable itself."""
        value = self._values.get(id(part))
        return part.value if value is None else value

    def deliver(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Send gradients to the servers of their variables, if the variables were fetched from there."""
        pairs = list(grads_and_vars)
        places = [place for place, (_, variable) in enumerate(pairs) if id(variable) in self._own]
        gradients, variables = zip(*(pairs[place] for place in places), strict=True) if places else ((), ())
        there = self._transfer.delivered(gradients, variables)
        for place, gradient in zip(places, there, strict=True):
            pairs[place] = gradient, pairs[place][1]
        return pairs

    def end(self) -> None:
        """End the transfers of the step, also of variables whose gradients are not sent back."""
        self._transfer.send_unreturned()

    def add_up(self, gradients: Sequence[Any], share: tf.Tensor) -> list[Any]:
        """Add gradients up on the servers of their variables, each scaled by this replica's share."""
        known = [
            (gradient, part)
            for gradient, part in zip(gradients, self._parts, strict=True)
            if gradient is not None
        ]
        cross = {id(gradient): part.value for gradient, part in known if id(part) in self._values}

        def add_up(apart: Sequence[Any]) -> Any:
            self._leaving = [cross[id(gradient)] for gradient in apart]
            context = tf.distribute.get_replica_context()
            return context.merge_call(_sums_on_servers, args=(self, list(apart), share))

        return summed_apart(gradients, share, lambda gradient: id(gradient) in cross, add_up)

    def _put_together(self, variable: Any) -> tf.Tensor:
        return put_together([self._values[id(part)] for part in parts_of([variable])])


def _sums_on_servers(strategy: Any, fetched: Any, gradients: Sequence[Any], share: Any) -> list[tf.Tensor]:
    """Send the gradients of all replicas to the servers; return their sums, added in the replicas' order."""
    there = []
    for replica, (device, own) in enumerate(
        zip(strategy.extended.worker_devices, fetched.values, strict=True)
    ):
        with tf.device(device):
            mine = [value.values[replica] for value in gradients]
            scaled = [value * tf.cast(share.values[replica], value.dtype) for value in mine]
        there.append(own._transfer.delivered(scaled, own._leaving, device=device))
    sums = []
    for parts in zip(*there, strict=True):
        with tf.device(parts[0].device):
            sums.append(tf.add_n(parts))
    return sums


def _of_first(gradient: Any) -> Any:
    """Return the first replica's gradient."""
    return gradient.values[0] if isinstance(gradient, tf.distribute.DistributedValues) else gradient

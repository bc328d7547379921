"""Let the variables of a Keras 3 model come to a worker by the post, and its gradients go back by it."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.loop.shards import parts_of, put_together
from tfdist.loop.sharing import summed_apart

__all__ = ["Crossed", "Crossings"]


class Crossings:
    """Know which variables of a model cross, and begin the crossing of one step.

    Those that a model reads by rows do not, for only the rows that it needs are sent then: which they are is
    told by their gradients, which are sparse.
    """

    def __init__(self, post: Any, variables: Sequence[Any]) -> None:
        """Take the strategy's post, and the variables that are trained, whole."""
        self._post, self._variables = post, list(variables)
        self._crossing: list[Any] | None = None  # the variables that cross

    def settle(self, gradients: Callable[[], Sequence[Any]]) -> None:
        """Find out what crosses, by what gives the gradients of all parts in a graph that is thrown away."""
        if self._crossing is not None:
            return
        found: list[Any] = []
        tf.function(
            lambda: found.extend(map(_of_first, gradients())), autograph=False
        ).get_concrete_function()
        # (To tf.is_tensor, a sparse gradient is a tensor too.)
        parts = parts_of(self._variables)
        is_dense = {id(part): isinstance(each, tf.Tensor) for part, each in zip(parts, found, strict=True)}
        self._crossing = [
            each for each in self._variables if all(is_dense[id(part)] for part in parts_of([each]))
        ]

    def begin(self) -> "Crossed | None":
        """Let the variables come, in the graph of a worker, if there are any that cross."""
        variables = self._crossing or []
        if not variables:
            return None
        parts = parts_of(variables)
        crossing = self._post.crossing([each.value for each in parts])
        return Crossed(crossing, variables, parts, parts_of(self._variables))


class Crossed:
    """Hold what has come to a worker for one step."""

    def __init__(
        self, crossing: Any, variables: Sequence[Any], parts: Sequence[Any], all_parts: Sequence[Any]
    ) -> None:
        self._crossing, self._variables, self._parts = crossing, variables, all_parts
        self._leaving: list[Any] = []  # the variables of the gradients that leave together
        self._values = dict(zip(map(id, parts), crossing.values, strict=True))
        self._own = {id(each.value) for each in parts}

    def watched(self, tape: tf.GradientTape) -> list[tuple[Any, tf.Tensor]]:
        """Give the variables and their values, which a tape watches."""
        tape.watch(list(self._values.values()))
        return [(each, self._put_together(each)) for each in self._variables]

    def source(self, part: Any) -> Any:
        """Give what the gradient of a part is taken by: its value that has come, or the variable itself."""
        value = self._values.get(id(part))
        return part.value if value is None else value

    def deliver(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Bring gradients to the servers of their variables, if these have come from there."""
        pairs = list(grads_and_vars)
        places = [place for place, (_, variable) in enumerate(pairs) if id(variable) in self._own]
        gradients, variables = zip(*(pairs[place] for place in places), strict=True) if places else ((), ())
        there = self._crossing.delivered(gradients, variables)
        for place, gradient in zip(places, there, strict=True):
            pairs[place] = gradient, pairs[place][1]
        return pairs

    def end(self) -> None:
        """End the step's graph, whatever the optimizer has made of the gradients."""
        self._crossing.tie()

    def add_up(self, gradients: Sequence[Any], share: tf.Tensor) -> list[Any]:
        """Add gradients up on the servers of their variables, each times this replica's share."""
        known = [(each, part) for each, part in zip(gradients, self._parts, strict=True) if each is not None]
        cross = {id(each): part.value for each, part in known if id(part) in self._values}

        def add_up(apart: Sequence[Any]) -> Any:
            self._leaving = [cross[id(each)] for each in apart]
            context = tf.distribute.get_replica_context()
            return context.merge_call(_added_up_there, args=(self, list(apart), share))

        return summed_apart(gradients, share, lambda each: id(each) in cross, add_up)

    def _put_together(self, variable: Any) -> tf.Tensor:
        return put_together([self._values[id(part)] for part in parts_of([variable])])


def _added_up_there(strategy: Any, crossed: Any, gradients: Sequence[Any], share: Any) -> list[tf.Tensor]:
    """Bring the gradients of all replicas to the servers, and add them up there in the replicas' order."""
    there = []
    for replica, (device, each) in enumerate(
        zip(strategy.extended.worker_devices, crossed.values, strict=True)
    ):
        with tf.device(device):
            mine = [value.values[replica] for value in gradients]
            scaled = [value * tf.cast(share.values[replica], value.dtype) for value in mine]
        there.append(each._crossing.delivered(scaled, each._leaving, device=device))
    sums = []
    for parts in zip(*there, strict=True):
        with tf.device(parts[0].device):
            sums.append(tf.add_n(parts))
    return sums


def _of_first(gradient: Any) -> Any:
    """Give the first replica's gradient."""
    return gradient.values[0] if isinstance(gradient, tf.distribute.DistributedValues) else gradient

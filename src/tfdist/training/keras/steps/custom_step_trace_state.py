"""Keep the state of one replica while TensorFlow traces a custom step of a model."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.training.keras.rng import GraphSeed
from tfdist.training.keras.stateless_scopes import NonTrainableScope, current_graph
from tfdist.training.replicas.hide_other_replicas import replicas_hidden


class OptimizerUse(NamedTuple):
    """A use of an optimizer in a step."""

    optimizer: Any
    variables: list[Any]

    @property
    def key(self) -> tuple[int, ...]:
        """Return what two uses of the same optimizer for the same variables have in common."""
        return (id(self.optimizer), *map(id, self.variables))


@dataclass
class ReplicaTrace:
    """The state of one replica while its step is traced.

    Attributes:
        scope: The scope that catches what the step writes.
        data: The replica's part of the batch.
        size: The number of the replica's examples.
        share: The replica's share of the examples of the global batch.
        graph: The graph of the step, None if it is not traced.
        seed: The seed of the graph, which differs between replicas.
        seeds: The states of the random generators that the step began with.
        scales: The factor of each optimizer that scales losses, by the optimizer's id.
        totals: The totals of the metrics before the batch.
        results: The values that metrics have returned, each with its metric and its place in the result.
        is_in_metric: Whether a metric is called, whose own calls of other metrics are not the step's.
        inputs: The tensors that the step gets: of the data, or an example of zeros where there are none.
        uses: The uses of optimizers, if the step is only traced to find them.
        means: The losses of Keras, which are scaled so that they are means over the examples, by their ids.
        gradients: The gradients that the step reads or changes, of the whole batch; if the step is only
            traced to find them, those that it computes.
        gradients_in_other_graphs: Those of them that it computes in a branch or a loop.
        gradients_in_other_tapes: Those of them that it computes while a tape records.
        applied: The gradients that it passes to optimizers, if the step is only traced to find them.
        changes_gradients: Whether it applies others, if the step is only traced to find them.
        is_updating: Whether an optimizer updates variables.
    """

    scope: NonTrainableScope
    data: Any
    size: tf.Tensor
    share: tf.Tensor
    graph: tf.Graph | None
    seed: GraphSeed
    seeds: list[tuple[Any, tf.Tensor]]
    scales: dict[int, tf.Tensor] = field(default_factory=dict)
    totals: Sequence[tf.Tensor] = ()
    results: list[tuple[Any, Any, int]] = field(default_factory=list)
    is_in_metric: bool = False
    inputs: list[tf.Tensor] = field(default_factory=list)
    uses: list[OptimizerUse] | None = None
    means: dict[int, Any] = field(default_factory=dict)
    gradients: list[Any] = field(default_factory=list)
    gradients_in_other_graphs: list[Any] = field(default_factory=list)
    gradients_in_other_tapes: list[Any] = field(default_factory=list)
    applied: list[Any] = field(default_factory=list)
    changes_gradients: bool = False
    is_updating: bool = False

    def is_in_its_graph(self) -> bool:
        """Return whether the step is at its top level, where replicas can exchange values."""
        return current_graph() is self.graph

    @contextlib.contextmanager
    def within_metric(self) -> Iterator[None]:
        """Count all calls of metrics within the block as calls by a metric."""
        before, self.is_in_metric = self.is_in_metric, True
        try:
            yield
        finally:
            self.is_in_metric = before

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        """Allow writes to variables, and other replicas to run, within the block."""
        self.is_updating = self.scope.is_paused = True
        try:
            with replicas_hidden(False), self.seed.restored():
                yield
        finally:
            self.is_updating = self.scope.is_paused = False

"""Replace methods that a custom step calls, so that a replica's step computes what one process would.

While a step of a model runs on a replica, the gradients of its tapes, the updates of its optimizers, and what
its metrics count are those of the whole batch.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist._utils.keras_2_and_3 import keras_of
from tfdist._utils.keras_private import is_of_keras, updated_by, variable_of_tensorflow
from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist._utils.temporary_patches import methods_replaced
from tfdist._utils.tf_private import ASSIGNMENTS, SHARED_VARIABLES, is_recording
from tfdist.errors import ConfigError
from tfdist.strategies.gradient_arithmetic import with_values
from tfdist.training.keras.layer_writes import warning_of_assignment
from tfdist.training.keras.losses_and_metrics.loss_checks import LossWarning
from tfdist.training.keras.losses_and_metrics.metric_state import MetricState
from tfdist.training.keras.optimizers.optimizer import Update, adds_rows_up
from tfdist.training.keras.steps.custom_step_gradients import made_of_whole_batch, of_whole_batch
from tfdist.training.keras.steps.custom_step_losses import part_of_number, parts_of_terms
from tfdist.training.keras.steps.custom_step_trace_state import OptimizerUse, ReplicaTrace
from tfdist.training.keras.steps.step_base import value_of
from tfdist.training.parameter_servers.applied_steps import AppliedSteps
from tfdist.training.replicas.call_synchronized_layers import has_synchronized_layers, unweighed, weighed
from tfdist.training.replicas.empty_replicas import or_zero
from tfdist.training.replicas.graph_queries import is_number_of_rows, is_same, marked_as_same
from tfdist.training.replicas.ops_across_examples import is_without_rows
from tfdist.training.replicas.reduction import rows_of, shared_mean

OTHER_GRAPHS = "a branch, a loop or a tf.function with a signature or jit_compile"
_INEXACT_IN_STEP = (
    "%s of model %s: computes the gradient of a number that is, as far as its graph shows, neither a mean nor"
    " a sum over the examples; several replicas each compute it on their part, and the mean of these counts"
)


class ReplacedMethods:
    """The methods of tapes, optimizers and metrics that a custom step calls, for all replicas.

    Attributes:
        uses: The uses of optimizers in the step.
        changes_gradients: Whether the step reads or changes gradients before an optimizer gets them.
        reads_of_results: The ids of the metrics with whose results the step computes.
    """

    def __init__(
        self,
        model: Any,
        strategy: tf.distribute.Strategy,
        name: str,
        warning: LossWarning,
        applied: Callable[[], AppliedSteps | None],
    ) -> None:
        """Replace them for the method `name` of a model.

        Args:
            model: The model.
            strategy: The strategy that it trains under.
            name: The name of its method, such as train_step.
            warning: The warning of a loss that replicas cannot share exactly.
            applied: A function that returns where optimizers note the steps that they apply.
        """
        self._keras, self._model, self._name = keras_of(model), model, name
        self._warning, self._applied = warning, applied
        self._replicas = strategy.num_replicas_in_sync
        self._merges = self._replicas > 1 or is_asynchronous(strategy)
        self._is_synchronized = self._replicas > 1 and has_synchronized_layers(model)
        self._here = threading.local()  # TensorFlow traces each replica in a thread of its own
        self._assignment_warning = LossWarning()
        self.uses: list[OptimizerUse] = []
        self.changes_gradients = False
        self.reads_of_results: set[int] = set()

    @contextlib.contextmanager
    def replaced(self, metrics: MetricState) -> Iterator[None]:
        """Replace the methods within the block; those of the metrics on each of them."""
        self._metrics = metrics
        self._variables_of_keras = {id(variable_of_tensorflow(each)) for each in self._model.variables}
        methods: list[tuple[Any, str, Callable[..., Any]]] = [
            (self._keras.metrics.Mean, "update_state", self._update_state)
        ]
        if self._replicas > 1:
            methods.append((tf.GradientTape, "gradient", self._gradients))
        for metric in metrics.metrics:
            methods.append((metric, "result", self._result))
            if type(metric) is self._keras.metrics.Sum:
                methods.append((metric, "update_state", self._update_state))
            elif not is_of_keras(type(metric)):
                methods.append((metric, "update_state", self._update_own_state))
        if self._replicas > 1:
            methods += [(kind, name, self._assign) for kind in SHARED_VARIABLES for name in ASSIGNMENTS]
        with optimizers_apply_by(self._keras, self._apply), methods_replaced(methods):
            yield

    @contextlib.contextmanager
    def on(self, replica: ReplicaTrace) -> Iterator[None]:
        """Call them for a replica, in this thread, within the block."""
        self._here.replica = replica
        try:
            yield
        finally:
            del self._here.replica

    def _result(self, original: Callable[[], Any], metric: Any) -> Any:
        """Return the result of a metric, and note that it is one.

        If the step computes with it, it is that of all replicas' examples, as one process would have it.
        """
        replica = getattr(self._here, "replica", None)
        if replica is None or replica.is_in_metric:
            return original()
        state: list[tuple[Any, tf.Tensor]] | None = None
        is_in_graph = replica.is_in_its_graph()
        if id(metric) in self.reads_of_results and is_in_graph and replica.uses is None:
            counted = self._metrics.counted(replica.scope)
            with replica.updating():
                state = self._metrics.so_far(metric, counted, replica.totals, replica.size)
        with replica.within_metric(), contextlib.ExitStack() as stack:
            if state is not None:
                stack.enter_context(self._keras.StatelessScope(state))
            result = tf.nest.map_structure(value_of, original())
        is_unknown = replica.uses is not None and is_in_graph and not tf.executing_eagerly()

        def as_new(value: Any) -> Any:
            """Return a tensor that nothing else uses, so that its graph shows whether the step does."""
            if not tf.is_tensor(value):
                return value
            if is_unknown:  # what is computed of it does not depend on the counts of this replica
                value = tf.compat.v1.placeholder(value.dtype, value.shape)
            value = tf.stop_gradient(value)  # as that of a variable
            return value if state is None and not is_unknown else marked_as_same(value)

        result = tf.nest.map_structure(as_new, result)
        replica.results += [(value, metric, index) for index, value in enumerate(tf.nest.flatten(result))]
        return result

    def _update_own_state(self, original: Callable[..., Any], metric: Any, *args: Any, **kwargs: Any) -> Any:
        """Update a metric of the user's own, which reads its results as it has counted them itself."""
        del metric
        replica = getattr(self._here, "replica", None)
        with contextlib.nullcontext() if replica is None else replica.within_metric():
            return original(*args, **kwargs)

    def _update_state(
        self, original: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None
    ) -> Any:
        """Count a mean over a replica's part by the part's share of the batch, which counts once in all."""
        replica = getattr(self._here, "replica", None)
        if replica is None:
            return original(values, sample_weight=sample_weight)
        is_unweighted, count = self._replicas > 1 and sample_weight is None, 1
        if is_unweighted and tf.is_tensor(values) and is_without_rows(values, rows_of(replica.data)):
            values = tf.cast(values, metric.dtype)  # such as one number for each class
            if type(metric) is self._keras.metrics.Sum:
                values = tf.reduce_sum(values)
            else:
                values, count = tf.reduce_mean(values), values.shape[0]
        if self._keras.ops.ndim(values):
            return original(values, sample_weight=sample_weight)
        values = part_of_number(values, replica) if self._replicas > 1 else values
        # Keras itself gives a weight in a graph that fixes the size of batches: the number of examples.
        weight = replica.share * count if sample_weight is None else sample_weight
        return original(values, sample_weight=weight)

    def _assign(
        self, original: Callable[..., Any], variable: Any, value: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Assign to a variable of TensorFlow the mean of the replicas' values over the examples.

        What an assignment adds or subtracts is a value too.
        """
        replica = getattr(self._here, "replica", None)
        if replica is None or replica.is_updating or replica.uses is not None:
            return original(value, *args, **kwargs)
        is_on_read = variable.synchronization is tf.VariableSynchronization.ON_READ
        is_added_up = is_on_read or variable.aggregation is tf.VariableAggregation.SUM
        is_number = variable.dtype.is_floating or variable.dtype.is_integer
        if is_added_up or not is_number or id(variable) in self._variables_of_keras:
            return original(value, *args, **kwargs)
        if not replica.is_in_its_graph():
            problem = f"assigns to {variable.name} in {OTHER_GRAPHS}, where replicas cannot share it"
            raise ConfigError(f"{self._name} of model {self._model.name}", problem, remedy="Assign after it")
        part = self._part_to_assign(variable, tf.convert_to_tensor(value, variable.dtype), replica)
        if part is None:
            return original(value, *args, **kwargs)
        with replica.updating():
            [mean] = shared_mean([], [or_zero(part, replica.size)], [], size=replica.size).state
            mean = mean if variable.dtype.is_floating else tf.round(mean)
            return original(tf.cast(mean, variable.dtype), *args, **kwargs)

    def _part_to_assign(self, variable: Any, value: tf.Tensor, replica: ReplicaTrace) -> tf.Tensor | None:
        """Return a replica's part of a value that it assigns; None if TensorFlow combines the values."""
        is_of_first = variable.aggregation is tf.VariableAggregation.ONLY_FIRST_REPLICA  # as integers are
        if tf.executing_eagerly():
            return None if is_of_first else value
        if is_same(value):
            return None
        number = value if variable.dtype.is_floating else tf.cast(value, tf.float64)
        if is_number_of_rows(value, replica.inputs):
            return tf.math.divide_no_nan(number, tf.cast(replica.share, number.dtype))
        part = part_of_number(number, replica)
        if part is not number:
            return part
        warning = warning_of_assignment(value, rows_of(replica.data))
        if warning is not None:
            self._assignment_warning.log(warning, variable.name)
        return None if is_of_first else part

    def _gradients(
        self, original: Callable[..., Any], tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Return the gradients of weights, of the whole batch if the step reads or changes them."""
        replica = getattr(self._here, "replica", None)
        variables = {id(variable) for variable in self._model.trainable_variables}
        weights = tf.nest.flatten(sources)
        if replica is None or replica.is_updating or not all(id(weight) in variables for weight in weights):
            return original(target, sources, *args, **kwargs)
        if args or "output_gradients" in kwargs:
            gradients = _flat(original(target, sources, *args, **kwargs), sources)
        else:
            terms = [term for loss in tf.nest.flatten(target) for term in self._terms_of_loss(loss, replica)]
            upstream = [tf.fill(tf.shape(term), tf.cast(by, term.dtype)) for term, by in terms]
            if self._is_synchronized:
                # Other replicas have a part in the loss. So it is weighed before its gradients flow to them.
                upstream = [weighed(values, replica.share) for values in upstream]
            found = original([term for term, _ in terms], sources, output_gradients=upstream, **kwargs)
            gradients = _flat(found, sources)
            gradients = unweighed(gradients, replica.share) if self._is_synchronized else gradients
        if replica.uses is not None:
            gradients = [with_values(gradient, tf.identity) for gradient in gradients]
            replica.gradients += gradients
            if not replica.is_in_its_graph():
                replica.gradients_in_other_graphs += gradients
            elif is_recording():
                replica.gradients_in_other_tapes += gradients
        elif self.changes_gradients and replica.is_in_its_graph() and not is_recording():
            with replica.updating():
                gradients = of_whole_batch(gradients, weights, replica.size, are_rows_added_up=False)
            replica.gradients += gradients
        return tf.nest.pack_sequence_as(sources, gradients)

    def _terms_of_loss(self, loss: Any, replica: ReplicaTrace) -> list[tuple[Any, Any]]:
        terms = parts_of_terms(loss, replica)
        if terms is None and replica.uses is not None:
            self._warning.log(_INEXACT_IN_STEP, self._name, self._model.name)
        return [(loss, 1.0)] if terms is None else terms

    def _apply(
        self, original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any = None
    ) -> Any:
        """Average gradients over the examples of the global batch, and apply them once."""
        replica = getattr(self._here, "replica", None)
        if replica is None or replica.is_updating:
            return original(grads, trainable_variables)
        if self._merges and not replica.is_in_its_graph():
            problem = f"updates variables in {OTHER_GRAPHS}, where replicas cannot exchange gradients"
            remedy = "Update after it; Python's range() makes no loop"
            raise ConfigError(f"{self._name} of model {self._model.name}", problem, remedy=remedy)
        gradients, variables = list(grads), trainable_variables
        variables = updated_by(optimizer) if variables is None else list(variables)
        if replica.uses is not None:
            replica.uses.append(OptimizerUse(optimizer, variables))
            replica.applied += gradients
            replica.changes_gradients |= not all(
                any(gradient is other for other in (None, *replica.gradients)) for gradient in gradients
            )
            return None
        if OptimizerUse(optimizer, variables).key not in {use.key for use in self.uses}:
            problem = f"applies {optimizer.name} to other variables than when it was traced first"
            raise ConfigError(f"{self._name} of model {self._model.name}", problem)
        scale = replica.scales.get(id(optimizer))
        with replica.updating():
            if replica.gradients:
                known = made_of_whole_batch(gradients, variables, replica.size, replica.gradients)
            else:
                are_rows_added_up = adds_rows_up(optimizer) and not self.changes_gradients
                known = of_whole_batch(
                    gradients, variables, replica.size, are_rows_added_up=are_rows_added_up
                )

            def apply(strategy: Any, gradients: list[Any], scale: Any) -> None:
                update = Update(strategy, optimizer, variables, applied=self._applied(), entry=None)
                update.apply(gradients, strategy.experimental_local_results(scale)[0])

            tf.distribute.get_replica_context().merge_call(apply, args=(known, scale))
        return None


def optimizers_apply_by(
    keras: ModuleType, apply: Callable[..., Any]
) -> contextlib.AbstractContextManager[None]:
    """Return a context in which all optimizers of Keras 3 apply gradients by a function."""
    optimizers = keras.optimizers
    names = ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
    kinds = [getattr(optimizers, name) for name in names if hasattr(optimizers, name)]
    return methods_replaced([(kind, "apply", apply) for kind in kinds])


def _flat(gradients: Any, sources: Any) -> list[Any]:
    """Return gradients in a list, where None among them has a place."""
    return [*tf.nest.flatten(gradients)] if isinstance(sources, (list, tuple, dict)) else [gradients]

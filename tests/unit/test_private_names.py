"""Two files alone use private names of TensorFlow and Keras, and the installed versions have all of these.

A new version that renames one fails here, with the name, and not in somebody's training. Which names there are, and
in which versions of Keras they were seen, is read from `_utils/tf_private.py` and `_utils/keras_private.py`.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tfdist

tf = pytest.importorskip("tensorflow")

from tfdist._utils import tf_private  # noqa: E402

SRC = Path(tfdist.__file__).parent
OF_TENSORFLOW, OF_KERAS = SRC / "_utils" / "tf_private.py", SRC / "_utils" / "keras_private.py"
SEEN = re.compile(r"Seen in (\d+\.\d+)(?: and (\d+\.\d+))?\.")
USUALLY_SEEN = re.compile(r"were seen in Keras (\d+)\.\d+, where a function does not list others")
_ASKING = ("getattr", "hasattr", "setattr", "delattr")


class Used(NamedTuple):
    """A private name, the expression whose attribute it is, and where it is used."""

    owner: str
    name: str
    line: int
    function: str


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def attributes_of(tree: ast.AST) -> Iterator[tuple[ast.expr, str, int]]:
    """Yield each attribute that is read or written, by its name, by getattr and its like, or by attributes_set."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.value, node.attr, node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ASKING:
            owner, name = node.args[0], node.args[1] if len(node.args) > 1 else None
            if isinstance(name, ast.Constant):
                yield owner, str(name.value), node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "attributes_set":
            yield from ((node.args[0], keyword.arg, node.lineno) for keyword in node.keywords if keyword.arg)


def defined_in(tree: ast.AST) -> set[str]:
    """Return the names that a file defines: functions, classes, variables, and attributes of self."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= {node.attr} if ast.unparse(node.value) == "self" else set()
    return names


def imported_from_tensorflow(tree: ast.AST) -> set[str]:
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tensorflow.python")
        for alias in node.names
    }


def used_in(path: Path) -> list[Used]:
    """Return the private names in one of the two files; all names in private modules are."""
    tree = ast.parse(path.read_text())
    modules = imported_from_tensorflow(tree)
    found = []
    for function in tree.body:
        if not isinstance(function, (ast.FunctionDef, ast.ClassDef)):
            continue
        for owner, name, line in attributes_of(function):
            root = ast.unparse(owner).partition(".")[0].partition("(")[0]
            if is_private(name) or root in modules or root.endswith("_module"):
                found.append(Used(ast.unparse(owner), name, line, function.name))
    return found


def samples_of_tensorflow():
    """Return, for each expression in tf_private.py whose private attributes are used, an object or its class."""
    from tensorflow.python.data.ops import (
        batch_op,
        cache_op,
        from_tensor_slices_op,
        map_op,
        repeat_op,
        shuffle_op,
    )
    from tensorflow.python.distribute import input_lib, parameter_server_strategy_v2
    from tensorflow.python.distribute.coordinator import cluster_coordinator, coordinator_context
    from tensorflow.python.distribute.coordinator import values as closures

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    collective = tf_private.cross_device_ops.CollectiveAllReduce
    dataset = tf.data.Dataset.range(3).map(lambda x: x + 1)
    return {
        "tf.__internal__.distribute": tf.__internal__.distribute,
        "pywrap_tfe": tf_private.pywrap_tfe,
        "control_flow_v2_func_graphs": tf_private.control_flow_v2_func_graphs,
        "script_ops": tf_private.script_ops,
        "script_ops._py_funcs": tf_private.script_ops._py_funcs,
        "context": tf_private.context,
        "ag_ctx": tf_private.ag_ctx,
        "ag_ctx.Status": tf_private.ag_ctx.Status,
        "autograph": tf_private.autograph,
        "tf_decorator": tf_private.tf_decorator,
        "context.context()": tf_private.context.context(),
        "executor": tf_private.executor,
        "coordinator_context": coordinator_context,
        "input_lib": input_lib,
        "iterators": closures.PerWorkerValues,
        "remote_value": closures.RemoteValueImpl,
        "coordinator_context.get_current_dispatch_context()": coordinator_context.DispatchContext,
        "strategy": parameter_server_strategy_v2.ParameterServerStrategyV2,
        "strategy.extended": strategy.extended,
        "extended": strategy.extended,
        "servers": parameter_server_strategy_v2.ParameterServerStrategyV2Extended,
        "cross_device_ops": tf_private.cross_device_ops,
        "collective_all_reduce_strategy": tf_private.collective_all_reduce_strategy,
        "coordinator_values": tf_private.coordinator_values,
        "composite_tensor_gradient": tf_private.composite_tensor_gradient,
        "config": tf_private.config,
        "sharded_variable": tf_private.sharded_variable,
        "replaced": collective,
        "self": collective,
        "super()": collective,
        "distribute_utils": tf_private.distribute_utils,
        "values": tf_private.values,
        "mirrored_variable": tf_private.values.Mirrored,
        "graph": tf.Graph(),
        "function": tf.function(lambda: 0),
        "dataset": dataset,
        "shuffled_dataset": shuffle_op._ShuffleDataset,
        "batched_dataset": batch_op._BatchDataset,
        "repeated_dataset": repeat_op._RepeatDataset,
        "cached_dataset": cache_op.CacheDataset,
        "sliced_dataset": from_tensor_slices_op._TensorSliceDataset,
        "parallel_dataset": map_op._ParallelMapDataset,
        "multi_device_iterator_ops": tf_private.multi_device_iterator_ops,
        "distributed_spec": input_lib.DistributedIteratorSpec
        if not hasattr(tf_private.values, "PerReplicaSpec")
        else tf_private.values.PerReplicaSpec,
        "coordinator": cluster_coordinator.ClusterCoordinator,
        "coordinator._cluster": cluster_coordinator.Cluster,
        "coordinator._cluster.closure_queue": cluster_coordinator._CoordinatedClosureQueue,
        "closure": closures.RemoteValueImpl,
        "ops": tf_private.ops,
        "ps_values": tf_private.ps_values,
        "ps_values.DistributedTable": tf_private.ps_values.DistributedTable,
        "ps_values.DistributedTable.resource_handle": tf_private.ps_values.DistributedTable.resource_handle,
        "tf.train.Checkpoint": tf.train.Checkpoint,
        "load": tf_private.load,
        "load._WrapperFunction": tf_private.load._WrapperFunction,
        "shard": tf.__internal__.distribute.ShardedVariable([tf.Variable([1.0])]).variables[0],
    }


def is_there(owner: object, name: str) -> bool:
    """Return whether an object has an attribute, or whether its class or a base of it sets one on itself."""
    kind = owner if inspect.isclass(owner) else type(owner)
    return hasattr(owner, name) or any(
        re.search(rf"\bself\.{name}\b.* = ", inspect.getsource(each))
        for each in kind.__mro__
        if each.__module__.partition(".")[0] in ("tensorflow", "keras", "tf_keras")
    )


def test_no_other_file_names_a_private_part_of_tensorflow_or_keras():
    wrong = []
    inherited = set().union(*(defined_in(ast.parse(path.read_text())) for path in SRC.rglob("*.py")))
    for path in sorted(SRC.rglob("*.py")):
        if path in (OF_TENSORFLOW, OF_KERAS):
            continue
        text = path.read_text()
        tree = ast.parse(text)
        own = defined_in(tree) | {
            "_asdict",
            "_fields",
            "_replace",
            "_exit",
            "_current_frames",
        }  # of NamedTuple, os, sys
        where = path.relative_to(SRC)
        wrong += [
            f"{where}:{line}: {ast.unparse(owner)}.{name}"
            for owner, name, line in attributes_of(tree)
            if (is_private(name) and name not in (inherited if ast.unparse(owner) == "self" else own))
            or name == "__internal__"
        ]
        wrong += [f"{where}: {name}" for name in ("tensorflow.python", ".src.") if name in text]
    assert not wrong, "\n".join(wrong)


def test_the_private_names_of_tensorflow_exist():
    samples, used = samples_of_tensorflow(), used_in(OF_TENSORFLOW)
    assert len(used) > 30
    assert sorted({each.owner for each in used} - set(samples)) == []  # what is it? Add a sample
    missing = [each for each in used if not is_there(samples[each.owner], each.name)]
    assert not missing


def samples_of_keras():
    """Return, for each expression in keras_private.py whose private attributes are used, objects of which one has them."""
    keras = tf.keras
    keras_3 = keras.__version__ >= "3"
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    options = {"gradient_accumulation_steps": 2} if keras_3 else {}
    model.compile(keras.optimizers.Adam(use_ema=True, **options), "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    adagrad = keras.optimizers.Adagrad()
    adagrad.build(model.trainable_variables)
    several = []
    if hasattr(keras.optimizers, "MultiOptimizer"):
        several = [keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.SGD()))]
        several[0].build(model.trainable_variables)
    modules = {
        "loss_module": "keras.src.losses.loss",
        "registered_module": "keras.src.saving.object_registration",
        "saving_module": "keras.src.saving.saving_lib",
        "state_module": "keras.src.backend.common.global_state",
    }
    if keras_3:
        from keras.src.trainers import data_adapters as adapters
    return {
        "model": [model],
        "layer": [model.layers[0]],
        "norm": [keras.layers.BatchNormalization(axis=-1)],
        "metric": [keras.metrics.Mean()],
        "loss": [keras.losses.MeanSquaredError()],
        "loss_class": [keras.losses.Loss],
        "data_adapter": [] if keras_3 else [importlib.import_module("keras.engine.data_adapter")],
        "adapter": [adapters.PyDatasetAdapter] if keras_3 else [],
        "callback_list": [keras.callbacks.CallbackList],
        "backup": [keras.callbacks.BackupAndRestore],
        "optimizer": [
            model.optimizer,
            adagrad,
            *several,
            *([] if keras_3 else [keras.optimizers.legacy.SGD()]),
        ],
        "variable": [model.trainable_variables[0]],
        **{name: [importlib.import_module(path)] for name, path in modules.items() if keras_3},
    }


def versions_of_functions(path: Path) -> dict[str, list[str]]:
    """Return the versions, 2 or 3, in which the private names of each function of keras_private.py were seen."""
    tree = ast.parse(path.read_text())
    usual = USUALLY_SEEN.search(ast.get_docstring(tree))[1]
    functions = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    seen = {node.name: SEEN.search(ast.get_docstring(node) or "") for node in functions}
    return {
        name: [each.partition(".")[0] for each in match.groups() if each] if match else [usual]
        for name, match in seen.items()
    }


def test_the_private_names_of_keras_exist():
    samples, used = samples_of_keras(), used_in(OF_KERAS)
    installed, versions = tf.keras.__version__.partition(".")[0], versions_of_functions(OF_KERAS)
    used = [each for each in used if installed in versions[each.function]]
    assert len(used) > 8
    assert sorted({each.owner for each in used} - set(samples)) == []  # what is it? Add a sample
    if not hasattr(tf.keras.optimizers, "MultiOptimizer"):
        used = [each for each in used if each.function != "index_in_multi_optimizer"]
    missing = [each for each in used if not any(is_there(owner, each.name) for owner in samples[each.owner])]
    assert not missing

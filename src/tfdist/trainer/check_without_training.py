"""Check in one process, without training, what a run needs: its strategy, its data and its model."""

import shutil
import tempfile
from typing import Any

import tensorflow as tf

from tfdist._utils.check_and_expand_paths import is_folder
from tfdist._utils.write_files import storage_errors
from tfdist.cluster.config import ClusterConfig
from tfdist.datasets.open_data import Data, open_data
from tfdist.export.write_export import try_formats
from tfdist.strategies.devices_and_threads import check_device
from tfdist.strategies.factory import check_strategy
from tfdist.trainer.batches_of_config import note_of_large_batch
from tfdist.trainer.callbacks_of_config import check_named_callbacks
from tfdist.trainer.checkpoint_manager import check_total
from tfdist.trainer.config import Config
from tfdist.trainer.model_of_config import compiled_model, find_outputs, own_modules
from tfdist.trainer.nan_recovery import check_on_nan
from tfdist.trainer.remote_run_folder import check_address, newest_step
from tfdist.trainer.run_folder import RunFolder
from tfdist.trainer.step_counts import profiled_range, steps_per_epoch, total_steps
from tfdist.training.checkpoints.checkpoint_files import find_newest


def check_without_training(config: Config, cluster: ClusterConfig, folder: RunFolder) -> list[str]:
    """Check what a run needs; return a summary, line by line."""
    check_options(config, cluster, folder)
    data = open_data(**config.data.wanted())
    parameters = checked_model(config, data).count_params()
    total, per_epoch = total_steps(config, data), steps_per_epoch(config, data)
    profiled_range(config, total)  # raises if it is beyond the end
    place = next(path for path in (folder.root, *folder.root.parents) if is_folder(path))
    with storage_errors(folder.root), tempfile.TemporaryDirectory(dir=place, prefix=".tfdist-"):
        free = shutil.disk_usage(place).free
    begun = _step_to_resume_from(folder)
    check_total(folder.place, begun or 0, total)
    note = note_of_large_batch(config, data)
    return [
        f"data      {described(data)}",
        f"model     {config.model.name}: {parameters:,} parameters, {4 * parameters / 1e6:.1f} MB",
        f"steps     {total:,} of {config.data.batch_size:,} examples; {per_epoch:,} are an epoch",
        *([f"ATTENTION: {note}"] if note else []),
        f"goes to   {folder.place}: {free / 1e9:.1f} GB free"
        + (f"; continues from its step {begun}" if begun is not None else ""),
        "Nothing was trained.",
    ]


def check_options(config: Config, cluster: ClusterConfig, folder: RunFolder) -> str:
    """Check what needs neither data nor model; return the name of the strategy."""
    lead = cluster.with_task(cluster.lead) if cluster else cluster
    name = check_strategy(lead, **config.strategy_options(cluster))
    check_on_nan(config, is_asynchronous=name == "parameter_server")
    if cluster.is_on_ports_of_ours or cluster.task is not None or not cluster:
        check_device(config.strategy.device, memory_growth=config.strategy.memory_growth)
    check_named_callbacks(config)
    check_address(folder)
    return name


def described(data: Data) -> str:
    """Describe a data set in a line."""
    instead = f" in place of {data.substitute_for}" if data.substitute_for else ""
    shape = "x".join(map(str, data.image_shape))
    counts = f"{data.train_examples:,} images to train on, {data.test_examples:,} to test on"
    return f"{data.name}{instead}: {counts}, {shape}, {len(data.classes)} classes"


def checked_model(config: Config, data: Data) -> Any:
    """Return the compiled model, after a try of the formats that it is exported to."""
    if config.strategy.precision is not None:
        tf.keras.mixed_precision.set_global_policy(config.strategy.precision)
    outputs = find_outputs(config, data)
    model = compiled_model(config, data, outputs)
    if config.export.formats:
        try_formats(model, data.image_shape, config.export.formats, outputs, own_modules(config))
    return model


def _step_to_resume_from(folder: RunFolder) -> int | None:
    """Return the step of the newest checkpoint; leave the copies alone, which a run may be using."""
    if (address := folder.address_of(folder.checkpoints)) is not None:
        return newest_step(address)
    newest = find_newest(folder.checkpoints)
    return None if newest is None else newest.step

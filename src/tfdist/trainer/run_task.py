"""Run the job of a config: connect, load data, train, check, export. Each task of a cluster calls `train`.

The chief writes the files of a run; the launcher, if there is one, writes its logs:

    RUN/report.html         a page about the run, which the command line writes
    RUN/report.json         the config, the results and the versions
    RUN/export/latest/      the SavedModel; its signature takes uint8 images and keys
    RUN/checkpoints/        the state from which a run resumes, one folder a step
    RUN/summaries/          curves and images for TensorBoard
    RUN/logs/               the output of each task
    RUN/report/             its answers for the test images, and its surest mistakes
    RUN/timeline/           what all tasks did in the steps of train.profile
    RUN/events.jsonl        what happened, one JSON object a line; the launcher adds to it too

On Vertex AI and SageMaker, run_folder.py finds other places for some of these. In an object store,
remote_run_folder.py uploads all of them but the logs.
"""

import contextlib
import logging
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist._utils.write_files import remove_partial, without_nan
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.answer_health_checks import answering_health_checks
from tfdist.coordination.cluster_traffic import Traffic
from tfdist.coordination.end_announcements import ServerTermination, keep_servers_at_exit
from tfdist.coordination.heartbeat_watch import Watcher
from tfdist.coordination.stall_watch import StallWatch
from tfdist.coordination.stop_signals import Notice, handling_stop_signals
from tfdist.errors import Preempted, TaskLost, TfdistError
from tfdist.export.write_export import export, try_formats
from tfdist.launcher.prometheus_metrics import serving_metrics
from tfdist.launcher.record_events import events_to_file, is_launched, listening, record
from tfdist.launcher.run_events import FILE, Configured, Exported, PhaseBegun, RunEnded
from tfdist.models.logits_or_probabilities import Outputs
from tfdist.strategies.factory import make_strategy
from tfdist.strategies.server import serve
from tfdist.trainer.batches_of_config import note_of_large_batch, open_run_data
from tfdist.trainer.check_same_on_workers import check_same_on_workers
from tfdist.trainer.classify_test_images import classify, write_answers
from tfdist.trainer.config import Config, recorded_sections
from tfdist.trainer.elastic import Elastic, MembershipChanged
from tfdist.trainer.evaluator import evaluate_checkpoints
from tfdist.trainer.model_of_config import build_model, find_outputs, initial_model, own_modules
from tfdist.trainer.prepare_data_on_workers import offer_to_prepare_data, prepare_data_on_workers
from tfdist.trainer.remote_run_folder import RemoteRunFolder, check_address
from tfdist.trainer.run_context import RunContext
from tfdist.trainer.run_folder import RunFolder
from tfdist.trainer.run_report import RunReport, write_report
from tfdist.trainer.train_loop import Run
from tfdist.training.checkpoints.lock_folder import locked
from tfdist.training.error_messages.lost_task_errors import naming_lost_tasks
from tfdist.training.error_messages.print_uncaught_errors import leave_out_errors_of_executors
from tfdist.training.reports.software_and_devices import versions
from tfdist.training.workers.exchange_numbers import wait_for_all

_IMAGES_TO_CHECK = 16
# Another order of sums may change the class of an image or two, also of few, and of some in ten thousand.
_ACCURACY_TOLERANCE, _IMAGES_TOLERATED = 2e-3, 2
_OF_TERMINAL = (signal.SIGINT, signal.SIGHUP)  # for a run in one process; a launcher handles them for others
_log = logging.getLogger("tfdist")


def train(config: Config, cluster: ClusterConfig, folder: RunFolder) -> RunReport | None:
    """Run this task's part of the job; return the report if this is the chief.

    Raises:
        Preempted: This or another task was told to end (SIGTERM, or Ctrl-C of a run in one process). A
            checkpoint is saved.
    """
    if cluster.serves:
        if cluster.task is not None and cluster.task.type == "worker":
            offer_to_prepare_data(config.data.wanted())
        stays, heartbeat_timeout = config.elastic is not None, config.watch.silence_limit
        serve(cluster, **config.strategy.serving(), heartbeat_timeout=heartbeat_timeout, stays=stays)
        return None
    leave_out_errors_of_executors()
    if cluster.is_chief:
        check_address(folder)  # before the other tasks wait for this one
    with handling_stop_signals(() if cluster else _OF_TERMINAL) as notice:
        if cluster.is_evaluator:
            with contextlib.ExitStack() as stack:
                stack.enter_context(StallWatch.of(cluster, config.watch.stall_timeout))
                if cluster.evaluator:  # it may have no address, as in a TFJob of Kubeflow
                    stack.enter_context(answering_health_checks(cluster.address(("evaluator", 0))))
                evaluate_checkpoints(config, cluster, folder)
            return None
        elastic = None if config.elastic is None else Elastic(config, config.elastic, cluster)
        try:
            with (
                locked(folder.checkpoints) if cluster.is_chief else contextlib.nullcontext(),
                _recorded(config, cluster, folder),
                _connected(config, cluster, folder, notice, elastic) as context,
            ):
                return _train(context)
        except (MembershipChanged, Preempted, TaskLost) as error:
            if elastic is None and isinstance(error, Preempted):
                keep_servers_at_exit()
            if isinstance(error, MembershipChanged):
                notice.raise_if_received()
            if elastic is None or notice.is_received:  # this task itself must end
                raise
            elastic.restart(error)


@contextlib.contextmanager
def _recorded(config: Config, cluster: ClusterConfig, folder: RunFolder) -> Iterator[None]:
    """Record the chief's events, and how the run ended; serve metrics, unless the launcher does."""
    if not cluster.is_chief:
        yield
        return
    port = None if is_launched() else config.metrics.prometheus_port
    with contextlib.ExitStack() as stack:
        metrics = stack.enter_context(serving_metrics(port, config.metrics.prometheus_address))
        if metrics is not None:
            stack.enter_context(listening(metrics.handle))
        stack.enter_context(events_to_file(folder.root / FILE))
        began = time.monotonic()
        record(Configured(config=recorded_sections(config)))
        try:
            yield
        except BaseException as error:
            stop = signal.SIGINT.name if isinstance(error, KeyboardInterrupt) else type(error).__name__
            problem = str(error) or stop
            record(RunEnded(seconds=time.monotonic() - began, problem=problem))
            raise
        record(RunEnded(seconds=time.monotonic() - began, problem=""))


@contextlib.contextmanager
def _connected(
    config: Config, cluster: ClusterConfig, folder: RunFolder, notice: Notice, elastic: Elastic | None
) -> Iterator[RunContext]:
    """Connect to the other tasks, and watch them while the block runs."""
    options = config.strategy_options(cluster)
    if elastic is not None:
        cluster, options = elastic.cluster, elastic.strategy_options
    record(PhaseBegun(phase="connecting"))
    with notice.kept():
        strategy = make_strategy(cluster, **options)
    spared = ("worker",) if is_asynchronous(strategy) else ()
    at_loss = None if elastic is None else elastic.restart
    watcher = Watcher(cluster, heartbeat_timeout=config.watch.silence_limit, spared=spared, at_loss=at_loss)
    # The other tasks take part in the agreement to leave, or training can continue without them.
    servers = [
        task for task in cluster.training().tasks() if cluster.ps and task.type not in ("chief", *spared)
    ]
    with (
        watcher,
        naming_lost_tasks("train", strategy),
        ServerTermination(servers) as server_termination,
        StallWatch.of(cluster, config.watch.stall_timeout, at_stall=at_loss),
    ):
        record(PhaseBegun(phase="loading data"))
        data = open_run_data(config)
        prepare_data_on_workers(cluster, data)
        check_same_on_workers(strategy, config, data)
        remote = RemoteRunFolder(folder) if cluster.is_chief and folder.copies else None
        yield RunContext(config, cluster, strategy, data, folder, notice, server_termination, elastic, remote)


def _train(context: RunContext) -> RunReport | None:
    started = time.monotonic()
    config, data, folder, strategy = context.config, context.data, context.folder, context.strategy
    if context.is_chief and data.substitute_for:
        _log.warning("ATTENTION: '%s' is used in place of '%s'", data.name, data.substitute_for)
    if context.is_chief and (note := note_of_large_batch(config, data)):
        _log.warning("ATTENTION: %s", note)
    record(PhaseBegun(phase="building"))
    outputs = find_outputs(config, data)
    if context.is_chief and config.export.formats:
        model = build_model(config, data)
        try_formats(model, data.image_shape, config.export.formats, outputs, own_modules(config))
    if context.remote is not None:
        context.remote.fetch()
    if context.is_chief:
        for place in (folder.root, folder.checkpoints, folder.export):
            remove_partial(place)
    model = initial_model(config, data, strategy, outputs)
    run = Run(context, model)
    with Traffic(strategy) as traffic:
        results = run.train()
    weights = model.get_weights()  # all tasks call this, because Keras 2 gathers values from each of them
    report = None
    if context.is_chief:
        record(PhaseBegun(phase="exporting"))
        report = _report(context, run, weights, outputs, results, traffic.bytes_sent, started)
        write_report(folder.report_file, report)
        record(Exported(folder=report.export))
        run.close()
        if context.remote is not None:
            context.remote.put_results(run.step)
    wait_for_all(strategy)  # a worker that ends while the chief still writes would count as lost
    return report


def _report(
    context: RunContext,
    run: Run,
    weights: Sequence[Any],
    outputs: Outputs,
    results: dict[str, float],
    sent: Mapping[str, int],
    started: float,
) -> RunReport:
    """Check and export the trained model, and return the report."""
    config, data = context.config, context.data
    local = build_model(config, data)
    local.set_weights(weights)
    _check_answers(context, run, local, outputs, results["accuracy"])
    steps = run.step - run.begun_at  # 0 where a run that is done is evaluated and exported again
    return RunReport(
        data=data.name,
        substitute_for=data.substitute_for,
        test_accuracy=results["accuracy"],
        test_loss=results["loss"],
        test={**results},
        steps=run.step,
        skipped_batches=run.skipped_batches,
        begun_at_step=run.begun_at,
        starts=len(run.history),
        steps_lost=sum(start.lost for start in run.history),
        export=context.folder.shown(_export(context, local, outputs, results, run.step)),
        seconds=run.seconds_before + time.monotonic() - started,
        bytes_sent_per_step={task: round(count / steps) for task, count in sent.items()} if steps else {},
        config=recorded_sections(config),
        versions=versions(),
    )


def _check_answers(context: RunContext, run: Run, model: Any, outputs: Outputs, accuracy: float) -> None:
    """Classify the test images in this process alone, and compare the accuracy with the cluster's."""
    config, data = context.config, context.data
    batches = config.evaluation.batches
    images, labels = data.split("test").arrays()
    count = len(labels) if batches is None else min(len(labels), batches * config.data.batch_size)
    images, labels = images[:count], labels[:count]
    answers, probabilities = classify(model, images, outputs)
    run.show_answers(images, labels, answers)
    write_answers(context.folder.root / "report", images, labels, answers, probabilities, data.classes)
    here = float(np.mean(answers == labels))
    allowed = max(_ACCURACY_TOLERANCE, (_IMAGES_TOLERATED + 0.5) / count)  # the accuracy has 32 bits
    if batches is not None or abs(here - accuracy) <= allowed:
        return
    if not run.counts_right_classes:
        text = "ATTENTION: the model's own metric accuracy is %.4f, but it classifies %.4f of the test images"
        _log.warning(f"{text} correctly", accuracy, here)
        return
    problem = f"classifies {here:.4f} of the test images correctly, the trained model {accuracy:.4f}"
    raise TfdistError("the model to be exported", problem, remedy="Report it: this is a fault of tfdist")


def _export(context: RunContext, model: Any, outputs: Outputs, results: dict[str, float], step: int) -> Path:
    """Write the SavedModel, from a copy of the model whose variables are all in this process."""
    config, data = context.config, context.data
    images, _ = next(iter(data.test(_IMAGES_TO_CHECK)))
    metadata = {
        "model": config.model.name,
        "data": data.name,
        "substitute_for": data.substitute_for,
        "data_fingerprint": data.fingerprint,
        "classes": list(data.classes),
        "test": without_nan(results),
        "versions": versions(),
    }
    return export(
        model,
        context.folder.export,
        step=step,
        is_only_one=context.folder.has_one_export,
        images=images.numpy(),
        metadata=metadata,
        formats=config.export.formats,
        outputs=outputs,
        modules=own_modules(config),
    )

"""Serve the state of a run to Prometheus, by the launcher if there is one, else by the chief."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from tfdist.cluster.addresses_and_free_ports import is_free
from tfdist.errors import ConfigError
from tfdist.launcher import run_events

_OF_VALIDATION = "val_"


@contextlib.contextmanager
def serving_metrics(
    port: int | None, address: str, *, section: str = "metrics."
) -> Iterator["PrometheusMetrics | None"]:
    """Serve the metrics at a port while the block runs; do nothing without a port.

    Args:
        port: The port.
        address: The address to listen on.
        section: How errors call what has these: `metrics.` of a config, or `--` of a command line.

    Raises:
        ConfigError: prometheus_client is not installed, or the port is taken.
    """
    if port is None:
        yield None
        return
    try:
        import prometheus_client
    except ImportError:
        remedy = "Type `pip install 'tfdist[metrics]'`"
        raise ConfigError(f"{section}prometheus_port", "needs prometheus_client", remedy=remedy) from None
    from tfdist.launcher.metrics_server import serving  # with an HTTP server, which few runs need

    metrics = PrometheusMetrics(prometheus_client)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(serving(prometheus_client.make_wsgi_app(metrics.registry), port, address))
        except (OSError, UnicodeError) as error:
            remedy = "Set another one" if not is_free(port) else f"Check {section}prometheus_address"
            problem = f"cannot listen on {address}:{port}: {getattr(error, 'strerror', None) or error}"
            raise ConfigError(f"{section}prometheus_port", problem, remedy=remedy) from None
        yield metrics


class PrometheusMetrics:
    """The metrics of a run, which follow its events.

    Attributes:
        registry: The registry of prometheus_client that has them, and nothing else.
    """

    def __init__(self, client: Any) -> None:
        """Make the metrics with the module prometheus_client."""
        self.registry = client.CollectorRegistry()

        def value(name: str, text: str, *labels: str) -> Any:
            return client.Gauge(f"tfdist_{name}", text, labels, registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> Any:
            return client.Counter(f"tfdist_{name}", text, labels, registry=self.registry)

        self._run = client.Info("tfdist_run", "What is trained", registry=self.registry)
        self._step = value("step", "Steps done")
        self._steps = value("steps", "Steps of the whole run")
        self._speed = value("examples_per_second", "Examples per second of the whole cluster")
        self._loss = value("loss", "Loss of the last steps")
        self._progressed_at = value("progress_timestamp_seconds", "When the last step was reported")
        self._tested = value("evaluation", "Result of the last evaluation", "metric")
        self._step_seconds = value("task_step_seconds", "Seconds that a task computes for a step", "task")
        self._up = value("task_up", "Whether the process of a task runs", "task")
        self._restarts = counter("task_restarts", "How often a task was started again", "task")
        self._checkpoint = value("checkpoint_step", "Step of the newest checkpoint")
        self._warnings = counter("warnings", "Warnings of the chief")
        self._tasks: tuple[str, ...] = ()

    def handle(self, event: run_events.AnyEvent) -> None:
        """Update the metrics by an event."""
        match event:
            case run_events.LaunchStarted(tasks=tasks):
                self._tasks = tuple(tasks)
                for task in tasks:
                    self._up.labels(task).set(0)
                    self._restarts.labels(task)
            case run_events.TaskStarted(task=task):
                self._up.labels(task).set(1)
            case run_events.TaskExited(task=task):
                self._up.labels(task).set(0)
            case run_events.TasksRestarting(task=task, all_tasks=all_tasks):
                for each in self._tasks if all_tasks else (task,):
                    self._restarts.labels(each).inc()
            case run_events.RunStarted(model=model, data=data, strategy=strategy, steps=steps):
                self._run.info({"model": model, "data": data, "strategy": strategy})
                if steps:
                    self._steps.set(steps)
            case run_events.Progressed():
                self._note_progress(event)
            case run_events.TaskSpeed(milliseconds=milliseconds):
                for task, taken in milliseconds.items():
                    self._step_seconds.labels(task).set(taken / 1000)
            case run_events.Evaluated(results=results):
                self._note_evaluation(results)
            case run_events.EpochEnded(logs=logs):  # the others are of the training
                results = {name: value for name, value in logs.items() if name.startswith(_OF_VALIDATION)}
                self._note_evaluation(
                    {name.removeprefix(_OF_VALIDATION): value for name, value in results.items()}
                )
            case run_events.CheckpointSaved(step=step):
                self._checkpoint.set(step)
            case run_events.Warned():
                self._warnings.inc()

    def _note_evaluation(self, results: Mapping[str, float | None]) -> None:
        for name, value in results.items():
            self._tested.labels(name).set(float("nan") if value is None else value)

    def _note_progress(self, event: run_events.Progressed) -> None:
        self._step.set(event.step)
        self._progressed_at.set(event.time)
        if event.steps is not None:
            self._steps.set(event.steps)
        if event.examples_per_second is not None:
            self._speed.set(event.examples_per_second)
        if event.loss is not None:
            self._loss.set(event.loss)

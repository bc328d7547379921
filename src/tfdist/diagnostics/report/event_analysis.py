"""Compute where the time of a run went, what happened when, and the curves, from its events."""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from tfdist._utils.run_process import signal_name
from tfdist.diagnostics.report.markup import duration
from tfdist.diagnostics.report.run_facts import RunFacts, is_stop
from tfdist.diagnostics.report.svg_charts import Band, Mark
from tfdist.launcher import run_events

Points = list[tuple[float, float]]
_MOST_CHECKPOINTS = 40  # that a chart marks
_STARTING, _RESTARTING, _ENDING = "starting", "restarting", "ending"
_NOT_FINITE = "NaN or infinite"
_LEAST_PHASE = 1e-3  # seconds
_LEAST_SECONDS = 0.9  # of training between two points: shorter ones would show the rhythm of the reports


def phase_seconds(facts: RunFacts) -> dict[str, float]:
    """Return the seconds of each phase, in the order in which they first began."""
    seconds: dict[str, float] = {}
    phase = _STARTING
    for index, event in enumerate(facts.events):
        passed = facts.times[index] - (facts.times[index - 1] if index else 0.0)
        seconds[phase] = seconds.get(phase, 0.0) + passed
        phase = _phase_after(event, phase)
        if isinstance(event, run_events.CheckpointSaved):
            saved = min(event.pause(), seconds.get("training", 0.0))
            seconds["training"] = seconds.get("training", 0.0) - saved
            seconds["saving checkpoints"] = seconds.get("saving checkpoints", 0.0) + saved
    return {name: taken for name, taken in seconds.items() if taken > _LEAST_PHASE}


def _phase_after(event: run_events.AnyEvent, phase: str) -> str:
    match event:
        case run_events.LaunchStarted():
            return _STARTING
        case run_events.Configured() if phase != "connecting":  # a process alone has started again
            return _STARTING
        case run_events.PhaseBegun():
            return event.phase
        # Reports of a script of the user's own.
        case run_events.Progressed() | run_events.EpochEnded() if phase in ("", _STARTING, _RESTARTING):
            return "training"
        case run_events.TasksRestarting(all_tasks=True):
            return _RESTARTING
        case run_events.RunEnded() | run_events.LaunchEnded():
            return _ENDING
    return phase


def evaluations(facts: RunFacts) -> list[Band]:
    """Return when the chief evaluated."""
    bands, began = [], None
    for event, time in zip(facts.events, facts.times, strict=True):
        if not isinstance(event, run_events.PhaseBegun):
            continue
        if began is not None:
            bands.append(Band(began, time, f"evaluation: {duration(time - began)}"))
        began = time if event.phase == "evaluating" else None
    return bands


def marks(facts: RunFacts) -> list[Mark]:
    """Return the faults, the restarts and, if they are few, the checkpoints."""
    found = []
    has_room = len(facts.all(run_events.CheckpointSaved)) <= _MOST_CHECKPOINTS
    for event, time in zip(facts.events, facts.times, strict=True):
        kind, text = _described(event)
        if kind in ("fault", "restart") or (kind == "checkpoint" and has_room):
            found.append(Mark(time, kind, text))
    return found


def happenings(facts: RunFacts) -> Iterator[tuple[float, str, str]]:
    """Yield what a reader of the run wants to know: when, of what kind, and what it was."""
    for event, time in zip(facts.events, facts.times, strict=True):
        kind, text = _described(event)
        if kind:
            yield time, kind, text


def _described(event: run_events.AnyEvent) -> tuple[str, str]:
    """Return the kind of an event and what it says; empty if it is none of note."""
    match event:
        case run_events.TaskExited(task=task, status=status, was_asked=False) if status:
            return "fault", f"{task} {_ended_by(status)}"
        case run_events.TaskKilled(task=task, seconds=seconds):
            return "fault", f"{task} was silent for {duration(seconds)} and was killed"
        case run_events.TaskStalled(task=task, doing=what, seconds=seconds):
            return "fault", f"{task} was stuck: it had been {what} for {duration(seconds)}"
        case run_events.TasksRestarting(task=task, all_tasks=True):
            return "restart", f"all tasks start again after the loss of {task}"
        case run_events.TasksRestarting(task=task):
            return "restart", f"{task} starts again"
        case run_events.CheckpointSaved(step=step, seconds=seconds):
            return "checkpoint", f"checkpoint of step {step:,}, saved in {duration(seconds)}"
        case run_events.Evaluated(step=step, results=results):
            values = (f"{name} {value:.4g}" for name, value in results.items() if value is not None)
            return "evaluation", f"step {step:,}: {', '.join(values)}"
        case run_events.RunStarted(step=0, steps=steps):
            return "start", f"training starts: {steps:,} steps" if steps else "training starts"
        case run_events.RunStarted(step=step, steps=steps, steps_lost=lost):
            of = f" of {steps:,}" if steps else ""
            again = "" if lost is None else f"; {lost:,} steps are done again"
            return "start", f"training resumes at step {step:,}{of}{again}"
        case run_events.Exported(folder=folder):
            return "export", f"exported to {folder}"
        case run_events.RunEnded(problem=problem) | run_events.LaunchEnded(problem=problem) if problem:
            return "stop" if is_stop(problem) else "failure", problem
    return "", ""


def _ended_by(status: int) -> str:
    if status < 0:
        return f"was ended by {signal_name(-status)}"
    return f"ended with status {status}"


def task_ends(facts: RunFacts, task: str) -> list[str]:
    """Return how the processes of a task ended, each in words."""
    return [_end_in_words(event) for event in facts.all(run_events.TaskExited) if event.task == task]


def _end_in_words(end: run_events.TaskExited) -> str:
    if end.status == 0:
        return "done"
    return "told to end" if end.was_asked else _ended_by(end.status)


def training_curve(facts: RunFacts, name: str) -> Points:
    """Return the training loss or accuracy at steps; the chief reports one value until there is a new one."""
    points: Points = []
    for event in facts.all(run_events.Progressed):
        value: float | None = getattr(event, name)
        is_new = not points or value != points[-1][1] or event.step < points[-1][0]
        if value is not None and is_new:
            points.append((event.step, value))
    return points


def test_curve(facts: RunFacts, name: str) -> Points:
    """Return a result of the evaluations at their steps."""
    found = [(event.step, event.results.get(name)) for event in facts.all(run_events.Evaluated)]
    return [(step, value) for step, value in found if value is not None]


def reports_speed(facts: RunFacts) -> bool:
    """Return whether the examples in a second are known; a script may report the steps alone."""
    is_reported = any(event.examples_per_second is not None for event in facts.all(run_events.Progressed))
    return is_reported or any(event.batch_size for event in facts.all(run_events.RunStarted))


def speed_curve(facts: RunFacts, now: Callable[[float], float]) -> Points:
    """Return the examples per second of the cluster over the time that the run had taken.

    They are those between two reports of the chief, by the time that was spent on training. For a script of
    the user's own, `fit` or the script reports the speed; if nobody knows it, these are steps per second.

    Args:
        facts: The run.
        now: What turns seconds into the unit of the axis.
    """
    points: Points = []
    before, spent, batch_size = 0, 0.0, None if reports_speed(facts) else 1
    for index, seconds in enumerate(_training_seconds(facts)):
        event, spent = facts.events[index], spent + seconds
        if isinstance(event, run_events.RunStarted):
            before, spent, batch_size = event.step, 0.0, event.batch_size or batch_size
        if not isinstance(event, run_events.Progressed):
            continue
        if batch_size is None:
            if event.examples_per_second is not None:
                points.append((now(facts.times[index]), event.examples_per_second))
        elif spent >= _LEAST_SECONDS:
            points.append((now(facts.times[index]), max(0, event.step - before) * batch_size / spent))
            before, spent = event.step, 0.0
    return points


def _training_seconds(facts: RunFacts) -> Iterator[float]:
    """Yield, for each event, the seconds since the one before it that were training."""
    phase = ""
    for index, event in enumerate(facts.events):
        passed = facts.times[index] - (facts.times[index - 1] if index else 0.0)
        saving = event.pause() if isinstance(event, run_events.CheckpointSaved) else 0.0
        yield max(0.0, passed - saving) if phase == "training" else 0.0
        phase = _phase_after(event, phase)


def step_times(facts: RunFacts, now: Callable[[float], float]) -> dict[str, Points]:
    """Return, for each task, the milliseconds that it computed for a step over the time of the run."""
    curves: dict[str, Points] = {}
    for event, time in zip(facts.events, facts.times, strict=True):
        if isinstance(event, run_events.TaskSpeed):
            for task, taken in event.milliseconds.items():
                curves.setdefault(task, []).append((now(time), taken))
    return curves


def mean_speed(facts: RunFacts) -> float | None:
    """Return the examples per second of all the training, with what was done again, without evaluations."""
    started, seconds = facts.started, phase_seconds(facts).get("training", 0.0)
    if started is None or not started.batch_size:  # a script reports it, or `fit`
        return _mean_of_reports(facts)
    if not seconds:
        return None
    steps = [
        event.step
        for event in facts.events
        if isinstance(event, run_events.Progressed | run_events.RunStarted)
    ]
    done = sum(max(0, after - before) for before, after in pairwise(steps))
    return done * started.batch_size / seconds if done else None


def _mean_of_reports(facts: RunFacts) -> float | None:
    """Return the mean of the speeds that the chief has reported, each for the training before it."""
    spent = examples = total = 0.0
    for event, seconds in zip(facts.events, _training_seconds(facts), strict=True):
        spent += seconds
        if not isinstance(event, run_events.Progressed):
            continue
        if event.examples_per_second is not None:
            examples, total = examples + event.examples_per_second * spent, total + spent
        spent = 0.0
    return examples / total if total else None


def last_results(facts: RunFacts) -> str:
    """Return the results of the last epoch of `fit`, or else what the chief has reported last, as text."""
    epoch, progress = facts.last(run_events.EpochEnded), facts.last(run_events.Progressed)
    results: Mapping[str, float | None] = {}
    if epoch is not None:
        results = epoch.logs
    elif progress is not None:
        results = {"loss": progress.loss, "accuracy": progress.accuracy}
    known = [result for result in results.items() if epoch is not None or result[1] is not None]
    known.sort(key=lambda result: (result[0].startswith("val_"), result[0] != "loss"))
    return ", ".join(f"{name} {_NOT_FINITE if value is None else f'{value:.4g}'}" for name, value in known)


def not_finite(facts: RunFacts) -> str:
    """Return which results of `fit` are NaN or infinite in the last epochs, as text; empty if none is."""
    since: dict[str, int] = {}
    for epoch in facts.all(run_events.EpochEnded):
        for name, value in epoch.logs.items():
            if value is None:
                since.setdefault(name, epoch.epoch + 1)
            else:
                since.pop(name, None)
    names = ", ".join(f"{name} from epoch {first:,} on" for name, first in since.items())
    return f"{_NOT_FINITE}: {names}" if names else ""


def computing_seconds(facts: RunFacts) -> dict[str, float]:
    """Return about how many seconds each task has computed, by its time for a step and the steps it did."""
    started, totals, before = facts.started, dict[str, float](), 0
    for event in facts.events:
        if isinstance(event, run_events.RunStarted):
            before = event.step
        if not isinstance(event, run_events.TaskSpeed):
            continue
        # Asynchronous tasks divide the steps among them; the others do each step together.
        is_divided = started is not None and started.strategy == "parameter_server"
        steps = max(0, event.step - before) * (1 if is_divided else len(event.shares))
        for task, taken in event.milliseconds.items():
            totals[task] = totals.get(task, 0.0) + taken / 1000 * steps * event.shares.get(task, 0.0)
        before = event.step
    return totals

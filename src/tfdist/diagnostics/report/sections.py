"""Write the sections of the page: what ran, how it went, and with which config. Each takes one run or two."""

import inspect
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tfdist._utils.readable_text import count
from tfdist.diagnostics.report.event_analysis import (
    computing_seconds,
    happenings,
    mean_speed,
    not_finite,
    phase_seconds,
    task_ends,
)
from tfdist.diagnostics.report.markup import (
    definitions,
    details,
    duration,
    escape,
    moment,
    number,
    percent,
    table,
)
from tfdist.diagnostics.report.run_facts import RecordedSteps, RunFacts, is_stop
from tfdist.launcher.launch_tasks import launch
from tfdist.launcher.run_events import (
    EpochEnded,
    Evaluated,
    LaunchStarted,
    NetworkChosen,
    Progressed,
    RunStarted,
    TaskStarted,
    Warned,
    accuracy_of,
)
from tfdist.profiling.timeline_paths import timelines_in

_MOST_TIMELINES = 8
_MOST_WARNINGS, _MOST_TASKS, _MOST_HAPPENINGS = 50, 200, 300
_ROUTINE = ("evaluation", "checkpoint")  # of what happens
_LAUNCHED = ("-m", "tfdist.train")
_DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(launch).parameters.items()}


def title(facts: RunFacts) -> str:
    """Return what a run trains, on what; for a script of the user's own its name."""
    if facts.started is not None and facts.started.data:
        return f"{facts.started.model} on {facts.started.data}"
    if facts.results is not None:
        model = facts.results.config.get("model")
        name = model.get("name") if isinstance(model, dict) else None
        return f"{name or 'a model'} on {facts.results.data}"
    words = [Path(word).name for word in facts.command if word.endswith(".py")]
    return words[0] if words else Path(facts.place).name


def state(facts: RunFacts) -> str:
    """Return whether a run is done, was stopped, has failed, or has not ended as far as its events tell."""
    if facts.problem is None:
        last = f": its last event was at {moment(facts.events[-1].time)}" if facts.events else ""
        return f"not ended{last}"
    if is_stop(facts.problem):
        return f"stopped: {facts.problem.removeprefix('launcher: stopped by ')}"
    return f"failed: {facts.problem}" if facts.problem else "done"


def test_accuracy(facts: RunFacts) -> float | None:
    """Return the last test accuracy."""
    if facts.results is not None and facts.results.test_accuracy is not None:
        return facts.results.test_accuracy
    evaluated = facts.last(Evaluated)
    return None if evaluated is None else evaluated.results.get("accuracy")


def validation_accuracy(facts: RunFacts) -> float | None:
    """Return the last validation accuracy of `fit`."""
    epoch = facts.last(EpochEnded)
    return None if epoch is None else accuracy_of(epoch.logs, is_of_validation=True)


def headline(facts: RunFacts) -> str:
    """Write what everyone asks first, what replaced the data, and which results are NaN or infinite."""
    started, speed = facts.started, mean_speed(facts)
    tested, validated = test_accuracy(facts), validation_accuracy(facts)
    figures = [
        ("Test accuracy", "" if tested is None else percent(tested)),
        ("Validation accuracy", "" if validated is None else percent(validated)),
        ("Duration", duration(facts.seconds)),
        ("Restarts", f"{facts.restarts}" if facts.all(LaunchStarted) else ""),
        ("Strategy", facts.strategy),
        ("Steps", _steps(facts)),
        ("Training speed", "" if speed is None else f"{number(speed)} examples/s"),
    ]
    instead = started.substitute_for if started else facts.results.substitute_for if facts.results else None
    replaced = (
        f"{started.data if started else facts.results.data if facts.results else ''} in place of {instead}"
    )
    notes = [replaced] if instead else []
    if bad := not_finite(facts):
        notes.append(bad)
    is_open = facts.problem is None or is_stop(facts.problem)
    how = "open" if is_open else "failed" if facts.problem else "done"
    return (
        f'<p class="state {how}">{escape(state(facts))}</p>'
        + "".join(f'<p class="note"><strong>Attention:</strong> {escape(note)}</p>' for note in notes)
        + definitions(figures).replace("<dl>", '<dl class="figures">')
    )


def _steps(facts: RunFacts) -> str:
    if facts.results is not None:
        return f"{facts.results.steps:,}"
    last = facts.last(Progressed)
    if last is None:
        return ""
    if last.steps and last.steps != last.step:
        return f"{last.step:,} of {last.steps:,}"
    return f"{last.step:,}"


def places(facts: RunFacts) -> str:
    """Write which tasks ran, where, and with which versions."""
    started, machine = facts.started, facts.started.machine if facts.started else {}
    pairs = [
        ("Folder", facts.place),
        ("Began", moment(facts.events[0].time) if facts.events else ""),
        ("Model", f"{started.model}, {started.parameters:,} parameters" if started else ""),
        ("Strategy", ", ".join(filter(None, (started.strategy, started.devices))) if started else ""),
        ("Data", _data(started)),
        ("Launch", _options(facts.launched)),
        ("Tasks", facts.tasks),
        ("Network", _network(facts.last(NetworkChosen))),
        *((f"Chief's {name}" if name != "GPUs" else "GPUs", value) for name, value in machine.items()),
        ("Versions", ", ".join(f"{name} {value}" for name, value in facts.versions.items())),
        ("Exported model", facts.results.export if facts.results else ""),
        ("Timeline of steps", _timelines(facts.folder)),
    ]
    return definitions(pairs) + _tasks(facts)


def _options(launched: LaunchStarted | None) -> str:
    """Return the options of the launch; those that are not set are left out."""
    options = launched.options if launched else {}
    return ", ".join(flag.lstrip("-") for name, value in options.items() for flag in _flags(name, value))


def _timelines(folder: Path) -> str:
    files = [path.relative_to(folder).as_posix() for path in timelines_in(folder)]
    return f"{', '.join(files)}, for ui.perfetto.dev" if files else ""


def _data(started: RunStarted | None) -> str:
    if started is None or not started.data:
        return ""
    sizes = f"{started.train_examples:,} examples to train on, {started.test_examples:,} to test on"
    return f"{started.data}: {sizes}, {started.batch_size:,} a batch"


def _network(chosen: NetworkChosen | None) -> str:
    if chosen is None:
        return ""
    return "private" if chosen.is_private else f"not private: {chosen.reason}"


def _tasks(facts: RunFacts) -> str:
    launched = facts.launched
    if launched is None or not launched.tasks:
        return ""
    begun = [event.task for event in facts.all(TaskStarted)]
    sent = facts.results.bytes_sent_per_step if facts.results else {}
    rows = []
    for task, address in list(launched.tasks.items())[:_MOST_TASKS]:
        ends = task_ends(facts, task)
        amount = f"{sent[task] / 1e6:.3g} MB" if task in sent else ""
        rows.append([task, address, str(begun.count(task)), "; ".join(ends) or "not ended", amount])
    return table(["task", "address", "starts", "ended", "sent a step"], rows, label="Tasks")


def where_time_went(runs: Sequence[RunFacts], names: Sequence[str]) -> str:
    """Write how long each phase took, as bars and numbers, and for one run what each task did meanwhile."""
    phases = [phase_seconds(facts) for facts in runs]
    every = list(dict.fromkeys(name for of_run in phases for name in of_run))
    most = max((seconds for of_run in phases for seconds in of_run.values()), default=0.0)
    if not most:
        return ""
    rows = []
    for name in every:
        cells = "".join(
            _bar(of_run.get(name, 0.0), most, sum(of_run.values()), run) for run, of_run in enumerate(phases)
        )
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    head = (
        "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
        if len(runs) > 1
        else "<th>time</th>"
    )
    body = f"<thead><tr><th>phase</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<table class="bars">{body}</table>' + ("".join(map(_computing, runs)) if len(runs) == 1 else "")


def _bar(seconds: float, most: float, total: float, style: int) -> str:
    share = f"{duration(seconds)} ({100 * seconds / total:.0f} %)" if total else ""
    width = f"{100 * seconds / most:.1f}"
    return f'<td><div class="bar b{style}" style="width:{width}%"></div><span>{share}</span></td>'


def _computing(facts: RunFacts) -> str:
    computed, training = computing_seconds(facts), phase_seconds(facts).get("training", 0.0)
    if not computed or not training:
        return ""
    rows = []
    for task, seconds in list(computed.items())[:_MOST_TASKS]:
        busy = min(seconds, training)
        rows.append([task, duration(busy), duration(training - busy), f"{100 * busy / training:.0f} %"])
    head = ["task", "computed", "exchanged or waited", "computing"]
    text = "<p>Of the training, about so much was computing, by the measured time of a step:</p>"
    return text + table(head, rows, label="Computing of each task")


def recorded_steps(facts: RunFacts) -> str:
    """Write how each task has spent the time of the steps in each timeline."""
    return "".join(_recorded(steps) for steps in facts.recorded[-_MOST_TIMELINES:])


def _recorded(steps: RecordedSteps) -> str:
    kinds = list(dict.fromkeys(kind for task in steps.tasks for kind in task.shares))
    rows = [
        [
            task.task,
            f"{number(1e3 * task.seconds / task.steps)} ms" if task.steps else "",
            *(f"{100 * task.shares.get(kind, 0.0):.0f} %" for kind in kinds),
        ]
        for task in steps.tasks[:_MOST_TASKS]
    ]
    which = "Recorded while the run trained"
    if steps.first_step is not None and steps.last_step is not None:
        which = f"Steps {steps.first_step:,} to {steps.last_step:,}"
    text = f"<p>{escape(which)}; clocks: {escape(steps.clocks or 'unknown')}.</p>"
    return text + table(["task", "a step", *kinds], rows, label=f"Time of each task: {which}")


def history(facts: RunFacts) -> str:
    """Write what happened, in order; of a long run the last, and evaluations if there is room."""
    rows = [[duration(time), kind, text] for time, kind, text in happenings(facts)]
    if not rows:
        return ""
    by_weight = sorted(range(len(rows)), key=lambda row: (rows[row][1] in _ROUTINE, -row))
    shown = [rows[row] for row in sorted(by_weight[:_MOST_HAPPENINGS])]
    note = ""
    if len(shown) < len(rows):
        note = f"<p>{len(shown)} of {len(rows):,}, without the earlier evaluations and checkpoints:</p>"
    return note + table(["after", "what", ""], shown, label="What happened")


def warnings(facts: RunFacts) -> str:
    """Write what the chief has warned of, each text once."""
    counts = Counter(event.text for event in facts.all(Warned))
    if facts.results and facts.results.skipped_batches:
        batches = ", ".join(map(str, facts.results.skipped_batches))
        counts[f"batches left out, because their loss was not finite: {batches}"] = 1
    shown = list(counts.items())[:_MOST_WARNINGS]
    repeated = {text: f" ({count(times, 'time')})" for text, times in shown if times > 1}
    entries = "".join(f"<li>{escape(text)}{repeated.get(text, '')}</li>" for text, _ in shown)
    more = f"<p>… and {len(counts) - _MOST_WARNINGS:,} more</p>" if len(counts) > _MOST_WARNINGS else ""
    return f'<ul class="warnings">{entries}</ul>{more}' if counts else ""


def configuration(facts: RunFacts) -> str:
    """Write the config as YAML; the sections of schedulers only where the run was started by one."""
    config = {name: value for name, value in facts.config.items() if name != "engine"}
    if not config:
        return ""
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    return details("All keys, defaults included", f"<pre>{escape(text)}</pre>")


def reproduction(facts: RunFacts) -> str:
    """Write the command that does the same again, in a folder of its own."""
    words, train = _typed(facts), facts.config.get("train")
    seed = train.get("seed") if isinstance(train, dict) else None
    if not words:
        return ""
    versions = facts.started.versions if facts.started else {}
    wanted = " and ".join(f"{name} {versions[name]}" for name in ("tfdist", "tensorflow") if name in versions)
    notes = (
        f"<p>With {escape(wanted)}; the seed is {escape(seed)}.</p>" if wanted and seed is not None else ""
    )
    return f"<pre>{escape(shlex.join(words))}</pre>{notes}"


def _typed(facts: RunFacts) -> list[str]:
    """Return the command as a user types it, without the folder of the run."""
    words, launched = list(facts.command), facts.launched
    for start in range(len(words) - 1):
        if tuple(words[start : start + 2]) == _LAUNCHED:
            words = ["tfdist", "train", *words[start + 2 :]]
            break
    else:
        if launched is not None:
            changed = [
                flag
                for name, value in launched.options.items()
                if value != _DEFAULTS.get(name)
                for flag in _flags(name, value)
            ]
            return ["tfdist", "launch", *_roles(launched), *changed, "--", *words]
    while "--run_dir" in words:
        place = words.index("--run_dir")
        del words[place : place + 2]
    return [word for word in words if not word.startswith("--run_dir=")]


def _roles(launched: LaunchStarted) -> list[str]:
    """Return the flags of `tfdist launch` for the tasks that ran; a chief comes by itself."""
    counts = Counter(task.partition(":")[0] for task in launched.tasks)
    flags = [f"--{name}={counts.pop(role, 0)}" for role, name in (("worker", "workers"), ("ps", "ps"))]
    counts.pop("chief", None)
    return [*flags, *(f"--job={role}={size}" for role, size in counts.items())]


def _flags(name: str, value: Any) -> list[str]:
    """Return an option of the launch as `tfdist launch` takes it."""
    if isinstance(value, list):
        return [f"--{name}={item}" for item in value]
    if isinstance(value, bool):
        return [f"--{name}"] if value else []
    return [] if value is None else [f"--{name}={value}"]

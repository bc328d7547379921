"""The page about a run: what is on it, that nothing on it is code, and what is left out of a poorer run."""

import json
import math
import re
from html.parser import HTMLParser

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs import HOSTILE, done_run, events_of_a_run, started, write_run

from commands import tfdist
from tfdist.cli.report import main
from tfdist.diagnostics.report.event_analysis import (
    computing_seconds,
    happenings,
    last_results,
    mean_speed,
    phase_seconds,
    speed_curve,
)
from tfdist.diagnostics.report.learning_and_speed_charts import speed_charts
from tfdist.diagnostics.report.page import run_page, write_page
from tfdist.diagnostics.report.run_facts import read_run
from tfdist.errors import ConfigError, DataError
from tfdist.launcher.run_events import (
    FILE,
    CheckpointSaved,
    Configured,
    EpochEnded,
    Evaluated,
    LaunchEnded,
    LaunchStarted,
    PhaseBegun,
    Progressed,
    RunEnded,
    RunStarted,
    TaskExited,
    TaskSpeed,
    TasksRestarting,
)
from tfdist.trainer.run_report import RunReport, write_report

VOID = {"meta", "img", "br", "wbr", "link", "input", "hr"}


class Page(HTMLParser):
    """The text, headings and tags of a page; a tag that is not closed is an error."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.open, self.headings, self.words = [], [], [], []
        self.feed(html)
        self.close()
        assert not self.open
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.words.append("" if tag in ("strong", "wbr") else " ")

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.words.append(data)
        if self.open[-1:] and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)


def page_of(*folders):
    return Page(write_page(folders).read_text())


def test_the_page_of_a_run_has_every_section(tmp_path):
    page = page_of(done_run(tmp_path / "run"))
    assert page.headings == [
        "mnist_cnn on digits",
        *(
            "Learning",
            "Loss",
            "Accuracy",
            "Speed",
            "Throughput of the cluster",
            "Computing time of a step",
        ),
        *("Where time went", "What happened", "Warnings", "Answers for the test images", "Surest mistakes"),
        *("What ran where", "Do it again", "Configuration"),
    ]
    for words in (
        "Test accuracy 80 %",
        "Restarts 1",
        "worker:1 was ended by SIGKILL",
        "worker:1 starts again",
        "checkpoint of step 20, saved in 0.25 s",
        "it is slow",
        "2 taken for 1 93.0 % sure",
        "was ended by SIGKILL; done",
        "tfdist train --config ps.yaml --set=train.steps=40",
        "learning_rate: 0.001",
        "3 tasks on 2 cores",
    ):
        assert words in page.text, words


def test_charts_can_be_heard_and_read_as_numbers(tmp_path):
    html = write_page([done_run(tmp_path / "run")]).read_text()
    page = Page(html)
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    charts = [attrs for tag, attrs in page.tags if tag == "svg" and attrs.get("role") == "img"]
    assert len(charts) == 4
    for attrs in charts:
        assert set(attrs["aria-labelledby"].split()) <= set(ids)
    assert "training: 0.2 at 10, 0.05 at 40 step; from 0.05 to 0.2" in page.text
    assert "training: 24.39 % at 10, 97.56 % at 40 step; from 24.39 % to 97.56 %" in page.text
    assert "100 %" in html
    assert "120 %" not in html
    assert html.count("<summary>The numbers</summary>") == 4
    assert all(attrs.get("alt") for tag, attrs in page.tags if tag == "img")
    assert ("html", {"lang": "en"}) in page.tags


def test_no_name_is_code(tmp_path):
    folder = done_run(tmp_path / "<b>run", data=HOSTILE, classes=[HOSTILE, "1", "2"], warning=HOSTILE)
    other = done_run(tmp_path / "other", data=HOSTILE, rate=0.1)
    for folders in ([folder], [folder, other]):
        html = write_page(folders).read_text()
        assert "&lt;script&gt;alert" in html
        assert "<script" not in html
        assert "<b>" not in html
        assert not [name for _, attrs in Page(html).tags for name in attrs if name.startswith("on")]


def test_the_page_loads_nothing(tmp_path):
    html = write_page([done_run(tmp_path / "run")]).read_text()
    assert "default-src 'none'" in html
    sources = [attrs["src"] for tag, attrs in Page(html).tags if "src" in attrs]
    assert sources
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.search(r"url\(|@import|https?://", html)


def test_time_is_divided_among_phases_and_tasks(tmp_path):
    facts = read_run(done_run(tmp_path / "run"))
    phases = phase_seconds(facts)
    assert sum(phases.values()) == pytest.approx(facts.seconds)
    assert (phases["starting"], phases["connecting"], phases["exporting"]) == (4, 2, 2)
    assert phases["evaluating"] == 4
    assert phases["saving checkpoints"] == 1
    assert computing_seconds(facts) == pytest.approx({"worker:0": 0.1, "worker:1": 0.14})
    assert mean_speed(facts) == pytest.approx(40 * 100 / phases["training"])
    first, *_ = speed_curve(facts, float)
    assert first == (9, 1000)  # 10 steps of 100 examples in the second since training began


def test_the_pause_before_a_second_start_does_not_count(tmp_path):
    again = events_of_a_run()
    for event in again:
        event.time += 1e6
    facts = read_run(write_run(tmp_path / "run", [*events_of_a_run(), *again]))
    assert facts.seconds == 2 * read_run(write_run(tmp_path / "once", again)).seconds


def test_a_run_that_still_runs_or_has_failed_says_so(tmp_path):
    events = events_of_a_run()
    last = next(
        index for index, event in enumerate(events) if isinstance(event, Progressed) and event.step == 30
    )
    running = page_of(write_run(tmp_path / "running", events[: last + 1]))
    assert "not ended: its last event was at 20" in running.text
    assert "30 of 40" in running.text
    assert "Surest mistakes" not in running.headings
    problem = "worker:1: exited with 1 <b>"
    launched = [event for event in events[: last + 1] if not isinstance(event, RunEnded)]
    ended = type(events[-1])(time=events[last].time, seconds=3.0, restarts=1, problem=problem)
    failed = page_of(write_run(tmp_path / "failed", [*launched, ended]))
    assert f"failed: {problem}" in failed.text
    unlaunched = [event for event in launched if not isinstance(event, LaunchStarted)]
    alone = [*unlaunched, RunEnded(time=events[last].time, seconds=3.0, problem=problem)]
    assert f"failed: {problem}" in page_of(write_run(tmp_path / "alone", alone)).text
    ended = LaunchEnded(
        time=events[last].time, seconds=3.0, restarts=0, problem="launcher: stopped by SIGINT; all"
    )
    stopped = page_of(write_run(tmp_path / "stopped", [*launched, ended]))
    assert "stopped: SIGINT; all" in stopped.text
    assert "failed" not in stopped.text
    assert "failure" not in stopped.text


def test_a_script_of_ones_own_has_fewer_sections(tmp_path):
    command = ["python", "/home/me/own.py", "--epochs=2"]
    events = [
        LaunchStarted(time=5.0, tasks={"worker:0": "127.0.0.1:1"}, command=command, shares="1 task"),
        Progressed(time=6.0, step=1, steps=None, examples_per_second=70.0, loss=3.0),
        Progressed(time=7.0, step=2, steps=None, examples_per_second=None, loss=None),
        EpochEnded(time=8.0, epoch=0, epochs=2, logs={"loss": 2.0, "val_loss": 2.5, "val_accuracy": 0.25}),
        EpochEnded(time=9.0, epoch=1, epochs=2, logs={"loss": 1.0, "val_loss": None, "val_accuracy": 0.75}),
    ]
    page = page_of(write_run(tmp_path / "run", events))
    assert page.headings[:4] == ["own.py", "Learning", "Loss", "loss of each epoch"]
    assert phase_seconds(read_run(tmp_path / "run")) == {"starting": 1, "training": 3}
    assert "accuracy of each epoch" in page.headings
    assert "Validation accuracy 75 %" in page.text
    assert "tfdist launch --workers=1 --ps=0 -- python /home/me/own.py --epochs=2" in page.text
    assert "Configuration" not in page.headings


def test_a_script_that_calls_fit_has_model_strategy_versions_and_speeds(tmp_path):
    tasks = {"worker:0": "127.0.0.1:1", "worker:1": "127.0.0.1:2"}
    begun = started("")
    begun.model, begun.strategy, begun.batch_size, begun.devices = "mine", "multi_worker_mirrored", 0, "2 CPU devices"  # fmt: skip
    begun.versions = {"tensorflow": "2.21.0", "keras": "3.15.1"}
    shares = dict.fromkeys(tasks, 0.5)
    events = [
        LaunchStarted(tasks=tasks, command=["python", "own.py"], shares="2 tasks"),
        begun,
        PhaseBegun(phase="training"),
        Progressed(step=10, steps=20, examples_per_second=100.0, loss=3.0),
        TaskSpeed(step=10, milliseconds={"worker:0": 50.0, "worker:1": 70.0}, shares=shares),
        Progressed(step=20, steps=20, examples_per_second=200.0, loss=3.0),
        PhaseBegun(phase="evaluating"),
        EpochEnded(epoch=0, epochs=1, logs={"loss": 2.0, "val_accuracy": 0.25}),
        PhaseBegun(phase="after fit"),
        LaunchEnded(seconds=9.0, restarts=0, problem=""),
    ]
    for second, event in enumerate(events):
        event.time = 1.8e9 + second
    page = page_of(write_run(tmp_path / "run", events))
    assert page.headings[0] == "own.py"
    for text in (
        "Validation accuracy 25 %",
        "Training speed 166.7 examples/s",  # 1 s at 100, and 2 s at 200
        "Model mine, 3,274,634 parameters",
        "Strategy multi_worker_mirrored, 2 CPU devices",
        "Versions tensorflow 2.21.0, keras 3.15.1",
        "training starts: 40 steps",
        "after fit",
    ):
        assert text in page.text
    facts = read_run(tmp_path / "run")
    assert computing_seconds(facts) == pytest.approx({"worker:0": 0.5, "worker:1": 0.7})
    assert speed_curve(facts, float) == [(3.0, 100.0), (5.0, 200.0)]


@pytest.mark.parametrize(
    ("steps", "lost", "text"),
    [
        (40, 3, "training resumes at step 8 of 40; 3 steps are done again"),
        (40, None, "training resumes at step 8 of 40"),
        (0, None, "training resumes at step 8"),
    ],
)
def test_a_start_names_its_step(tmp_path, steps, lost, text):
    begun = started("")
    begun.step, begun.steps, begun.steps_lost = 8, steps, lost
    launch = LaunchStarted(tasks={}, command=["x"], shares="1 task")
    [(_, kind, what)] = happenings(read_run(write_run(tmp_path / "run", [launch, begun])))
    assert (kind, what) == ("start", text)


@pytest.mark.parametrize(
    "logs", [{"val_acceleration_loss": 12.5}, {"val_a_accuracy": 0.5, "val_b_accuracy": 0.9}]
)
def test_no_accuracy_is_in_the_head_that_is_not_that_of_the_model(tmp_path, logs):
    events = [
        LaunchStarted(tasks={}, command=["x"], shares="1 task"),
        EpochEnded(epoch=0, epochs=1, logs=logs),
    ]
    assert "Validation accuracy" not in page_of(write_run(tmp_path / "run", events)).text


def test_a_launch_is_shown_with_the_flags_that_it_had(tmp_path):
    options = {"threads": 2, "pin": True, "network_isolation": "never", "restarts": 3, "alone": ["worker", "ps"], "heartbeat_timeout": None}  # fmt: skip
    tasks = dict.fromkeys(("chief:0", "worker:0", "worker:1", "ps:0"), "127.0.0.1:1")
    events = [LaunchStarted(time=5.0, tasks=tasks, command=["python", "x.py"], shares="", options=options)]
    flags = "--threads=2 --pin --network_isolation=never --restarts=3 --alone=worker --alone=ps"
    text = page_of(write_run(tmp_path / "run", events)).text
    assert f"tfdist launch --workers=2 --ps=1 {flags} -- python x.py" in text
    assert "threads=2, pin, network_isolation=never, restarts=3, alone=worker, alone=ps" in text
    defaults = {"threads": None, "pin": False, "network_isolation": "auto", "restarts": 0, "alone": [], "heartbeat_timeout": None}  # fmt: skip
    events[0].options = defaults
    assert (
        "tfdist launch --workers=2 --ps=1 -- python x.py"
        in page_of(write_run(tmp_path / "other", events)).text
    )


def test_steps_stand_in_for_examples_that_nobody_counts(tmp_path):
    events = [LaunchStarted(time=5.0, tasks={}, command=["x"], shares="1 task")]
    for second in range(1, 5):
        events.append(
            Progressed(time=5.0 + second, step=20 * second, steps=80, examples_per_second=None, loss=None)
        )
    folder = write_run(tmp_path / "run", events)
    assert speed_curve(read_run(folder), float) == [(2, 40), (3, 20), (4, 20)]
    assert "steps/s" in page_of(folder).text


def test_a_script_that_reports_its_steps_trains_again_after_a_restart(tmp_path):
    lost = TasksRestarting(task="worker:0", all_tasks=True, pause=0.0, restart=1, restarts=3)
    events = [LaunchStarted(tasks={}, command=["x"], shares="1 task")]
    events += [Progressed(step=20 * number, steps=100) for number in range(1, 3)]
    events += [lost, *(Progressed(step=20 * number, steps=100) for number in range(3, 6))]
    for second, event in enumerate(events):
        event.time = 5.0 + second
    facts = read_run(write_run(tmp_path / "run", events))
    assert phase_seconds(facts) == {"starting": 1.0, "training": 4.0, "restarting": 1.0}
    assert len(speed_curve(facts, float)) == 4


def test_the_speed_that_a_script_reports_is_in_the_head(tmp_path):
    events = [LaunchStarted(time=5.0, tasks={}, command=["x"], shares="1 task")]
    for second in range(1, 4):
        events.append(Progressed(time=5.0 + second, step=second, steps=3, examples_per_second=100.0 * second))
    folder = write_run(tmp_path / "run", events)
    assert mean_speed(read_run(folder)) == 250.0  # of the seconds after the first report
    assert "Training speed 250 examples/s" in page_of(folder).text


def test_results_that_are_nan_are_named(tmp_path):
    launch = LaunchStarted(tasks={}, command=["x"], shares="1 task")
    losses = [2.0, math.nan, 1.0, math.inf, math.nan]
    epochs = [
        EpochEnded(epoch=epoch, epochs=5, logs={"accuracy": 0.5, "loss": loss, "val_mae": math.nan})
        for epoch, loss in enumerate(losses)
    ]
    folder = write_run(tmp_path / "run", [])
    (folder / FILE).write_bytes(b"\n".join(map(msgspec.json.encode, [launch, *epochs])))
    facts = read_run(folder)
    assert last_results(facts) == "loss NaN or infinite, accuracy 0.5, val_mae NaN or infinite"
    assert "Attention: NaN or infinite: val_mae from epoch 1 on, loss from epoch 4 on" in page_of(folder).text


def test_long_values_are_compared_to_their_ends(tmp_path):
    folders = []
    for name in ("one", "two"):
        events = events_of_a_run()
        hosts = [f"machine-{number}.example.org:2222" for number in range(12)]
        next(event for event in events if isinstance(event, Configured)).config = {
            "cluster": {"worker": [*hosts, f"{name}:1"]}
        }
        folders.append(write_run(tmp_path / name, events))
    text = page_of(*folders).text
    assert "1 of 1 keys differ" in text
    assert 'org:2222", "one:1"]' in text
    assert 'org:2222", "two:1"]' in text


def test_steps_of_one_run_are_not_drawn_as_examples_of_another(tmp_path):
    folders = []
    for name, speed in (("one", 5000.0), ("two", None)):
        events = [LaunchStarted(time=5.0, tasks={}, command=["x"], shares="1 task")]
        for second in range(1, 5):
            events.append(
                Progressed(time=5.0 + second, step=20 * second, steps=80, examples_per_second=speed)
            )
        folders.append(write_run(tmp_path / name, events))
    charts = speed_charts([read_run(folder) for folder in folders], ["one", "two"])
    assert "examples/s" in charts
    assert "one" in charts
    assert "two" not in charts
    assert "two" in speed_charts([read_run(folders[1])] * 2, ["two", "three"])


def test_a_report_with_nan_is_json(tmp_path):
    folder = done_run(tmp_path / "run")
    report = RunReport(test_loss=math.inf, test={"loss": math.nan, "accuracy": 0.5}, steps=40)
    write_report(folder / "report.json", report)
    text = (folder / "report.json").read_bytes()
    assert msgspec.json.decode(text)["test"] == {"loss": None, "accuracy": 0.5}  # it refuses NaN
    assert read_run(folder).results.test_loss is None


def test_two_runs_are_compared(tmp_path):
    first, slow = done_run(tmp_path / "one"), events_of_a_run(rate=0.1)
    for event in slow:
        event.time = 2 * event.time
    page = page_of(first, write_run(tmp_path / "three", slow))
    assert "train.learning_rate 0.001 0.1" in page.text
    assert "1 of 4 keys differ" in page.text
    assert "duration 42 s 1 min 24 s x 2.00" in page.text
    assert "test accuracy 80 % 80 % +0.00 points" in page.text
    assert "one: training" in page.text
    assert "three: training" in page.text
    assert page.headings.count("Loss") == 1


def test_two_kinds_of_accuracy_are_not_compared(tmp_path):
    first = done_run(tmp_path / "one")
    ended = EpochEnded(time=8.0, epoch=0, epochs=1, logs={"loss": 2.0, "val_accuracy": 0.25})
    launch = LaunchStarted(time=5.0, tasks={}, command=["x"], shares="1 task")
    fitted = write_run(tmp_path / "three", [launch, ended])
    text = page_of(first, fitted).text
    assert "test accuracy 80 % — —" in text
    assert "validation accuracy — 25 % —" in text
    assert "Test accuracy" not in page_of(fitted).text


def test_a_config_of_another_form_is_shown_as_it_is(tmp_path):
    events = events_of_a_run()
    next(event for event in events if isinstance(event, Configured)).config = {"train": True}
    assert "train: true" in page_of(write_run(tmp_path / "run", events)).text


def test_a_model_of_another_form_has_no_name_in_a_run_without_events(tmp_path):
    folder = done_run(tmp_path / "run")
    (folder / "events.jsonl").unlink()
    results = json.loads((folder / "report.json").read_text())
    (folder / "report.json").write_text(json.dumps({**results, "config": {"model": True}}))
    assert "a model on " in page_of(folder).text


def test_a_secret_in_the_config_of_an_earlier_version_is_hidden(tmp_path):
    events = events_of_a_run()
    configured = next(event for event in events if isinstance(event, Configured))
    configured.config = {"model": {"options": {"api_key": "hidden", "layers": 3}}}
    text = page_of(write_run(tmp_path / "run", events)).text
    assert "layers: 3" in text
    assert "hidden" not in text


def test_the_page_of_a_run_in_a_store_is_made_from_there_and_written_there(tmp_path, capsys):
    done_run(tmp_path / "store" / "one")
    (tmp_path / "store/one/timeline").mkdir()
    (tmp_path / "store/one/timeline/timeline.json.gz").touch()
    done_run(tmp_path / "two", rate=0.5)
    address = f"file://localhost{tmp_path}/store/one"
    main([address])
    page = Page((tmp_path / "store/one/report.html").read_text())
    assert f"Folder {address} " in page.text
    assert "timeline/timeline.json.gz, for ui.perfetto.dev" in page.text
    assert page.headings == page_of(tmp_path / "store" / "one").headings
    main([address, str(tmp_path / "two")], str(tmp_path / "both.html"))
    assert "one: training" in Page((tmp_path / "both.html").read_text()).text
    assert not (tmp_path / "store/one/comparison.html").exists()
    assert capsys.readouterr().out == f"wrote {address}/report.html\nwrote {tmp_path}/both.html\n"


def _with_timeline(folder, name="timeline", tasks=2, task="worker", **about):
    """Add a timeline with its table to the folder of a run."""
    shares = {"compute": 0.75, "input": 0.05, "waiting": 0.1, "exchange": 0.08, "other": 0.02}
    rows = [
        {"task": f"{task}:{index}", "steps": 10, "seconds": 0.25, "shares": shares} for index in range(tasks)
    ]
    rows.append({"task": "ps:0", "steps": 0, "seconds": 0.25, "shares": shares})
    (folder / "timeline").mkdir(exist_ok=True)
    (folder / f"timeline/{name}.json.gz").touch()
    table = {**about, "clocks": "one machine, one clock", "tasks": rows}
    (folder / f"timeline/{name}.shares.json").write_text(json.dumps(table))


def test_the_tables_of_timelines_are_on_the_page(tmp_path):
    folder = done_run(tmp_path / "run")
    _with_timeline(folder, **{"first step": 20, "last step": 29})
    _with_timeline(folder, "timeline-2", task="<b>worker", seconds=2.0)
    page = page_of(folder)
    assert "Steps 20 to 29; clocks: one machine, one clock." in page.text
    head = "task a step compute input waiting exchange other"
    assert f"{head} worker:0 25 ms 75 % 5 % 10 % 8 % 2 % worker:1 25 ms 75 %" in page.text
    assert "ps:0 75 % 5 % 10 % 8 % 2 %" in page.text
    assert "Recorded while the run trained" in page.text
    (folder / "timeline/timeline.shares.json").write_text('{"tasks": 3}')
    with pytest.raises(DataError, match=r"timeline.shares.json: is damaged: "):
        read_run(folder)
    (folder / "timeline/timeline.shares.json").unlink()  # a timeline of an earlier version has none
    assert len(read_run(folder).recorded) == 1


def test_a_page_about_a_long_run_of_many_tasks_stays_small(tmp_path):
    tasks = {f"worker:{index}": f"10.0.{index // 256}.{index % 256}:2222" for index in range(1_000)}
    shares = dict.fromkeys(tasks, 1e-3)
    milliseconds = {task: 10.0 + index for index, task in enumerate(tasks)}
    begun = started("digits")
    begun.cluster, begun.addresses = {"worker": 1_000}, tasks
    events = [
        LaunchStarted(tasks=tasks, command=["python", "own.py"], shares=""),
        begun,
        PhaseBegun(phase="training"),
    ]
    for step in range(1, 301):
        events.append(TaskSpeed(step=step, milliseconds=milliseconds, shares=shares))
    for step in range(1, 10_001):
        events.append(
            Progressed(step=step, steps=10_000, examples_per_second=1e6 / 3, loss=1 / step, accuracy=0.5)
        )
        if step % 20 == 0:
            events += [
                Evaluated(step=step, results={"loss": 1 / step, "accuracy": 1 / 3}),
                CheckpointSaved(step=step, seconds=0.1),
            ]
    for second, event in enumerate(events):
        event.time = 1.8e9 + second
    events.append(LaunchEnded(seconds=1.0, restarts=0, problem=""))
    mistakes = [{"label": 0, "answer": 1, "probability": 0.9, "row": row} for row in range(24)]
    answers = {"classes": ["a", "b"], "counts": [[0, 1, 24]], "mistakes": mistakes}
    folder = write_run(tmp_path / "run", events, {"steps": 10_000, "data": "digits"}, answers)
    for path in (folder / "report").glob("*.png"):
        path.write_bytes(path.read_bytes().ljust(99_000))
    for number in range(1, 12):
        _with_timeline(folder, "timeline" if number == 1 else f"timeline-{number}", tasks=1_000)
    page = write_page([folder])
    assert page.stat().st_size < 3e6
    assert (
        len([tag for tag, _ in Page(page.read_text()).tags if tag == "img"]) == 15
    )  # the others have no room


def test_what_happens_often_in_a_long_run_is_marked_together(tmp_path):
    events = [LaunchStarted(tasks={"worker:0": "127.0.0.1:1"}, command=["x"], shares=""), started("digits")]
    for step in range(5_000):
        events += [
            PhaseBegun(phase="training"),
            Progressed(step=step, steps=5_000, examples_per_second=1.0, loss=1.0),
            PhaseBegun(phase="evaluating"),
            TaskExited(task="worker:1", pid=3, status=-9, was_asked=False, starts_again=True),
        ]
    for second, event in enumerate(events):
        event.time = 1.8e9 + second
    page = page_of(write_run(tmp_path / "run", events))
    kinds = [attrs.get("class") for _, attrs in page.tags]
    assert 100 < kinds.count("mark fault") < 500
    assert 100 < kinds.count("band") < 500
    assert re.search(r"worker:1 was ended by SIGKILL, and \d\d more", page.text)
    assert re.search(r"evaluation: 2 s, and \d\d more", page.text)


def test_a_mistake_about_a_run_in_a_store_names_the_address(tmp_path):
    address = f"file://localhost{tmp_path}/none"
    with pytest.raises(ConfigError, match=f"^{address}: is no folder of a run: "):
        main([address])
    done_run(tmp_path / "none")
    (tmp_path / "none/report.json").write_text("{")
    with pytest.raises(DataError, match=f"^{address}/report.json: is damaged: "):
        main([address])
    with pytest.raises(
        ConfigError, match=r"^nowhere://bucket/x: TensorFlow .* has no file system for nowhere://"
    ):
        main(["nowhere://bucket/x"])


def test_torn_lines_are_left_out(tmp_path):
    folder = done_run(tmp_path / "run")
    path = folder / FILE
    path.write_bytes(b"\xff\xfe{\n" + path.read_bytes()[:-30])
    assert "mnist_cnn on digits" in page_of(folder).headings


def test_many_classes_have_no_matrix(tmp_path):
    counts = [[0, 0, 5], [3, 4, 2], [3, 3, 1]]
    answers = {"classes": [f"class {index}" for index in range(1000)], "counts": counts, "mistakes": []}
    page = page_of(write_run(tmp_path / "run", events_of_a_run(), {"test_accuracy": 0.5}, answers))
    assert "class 3 class 4 2 66.67 %" in page.text
    assert not any(attrs.get("class") == "confusion" for _, attrs in page.tags)


def test_a_long_run_of_many_tasks_has_a_small_page(tmp_path):
    tasks = [f"worker:{index}" for index in range(100)]
    events = [LaunchStarted(tasks=dict.fromkeys(tasks, "127.0.0.1:1"), command=["x"], shares="100 tasks")]
    for step in range(10_000):
        events.append(
            Progressed(time=step, step=step, steps=10_000, examples_per_second=1.0, loss=1 / (step + 1))
        )
    page = write_page([write_run(tmp_path / "run", events)])
    assert page.stat().st_size < 300_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{empty}"], "is no folder of a run"),
        (["{empty}/nowhere"], "is no folder of a run"),
        (["{empty}", "--output=gs://bucket/a.html"], "expected a path of this machine"),
        ([], "expected the folders of one or two runs"),
        (["{empty}", "{empty}", "{empty}"], "expected the folders of one or two runs"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(words, message, tmp_path):
    run = tfdist("report", *(word.format(empty=tmp_path) for word in words))
    assert run.returncode == 2, run.stderr
    assert message in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_the_command_names_what_it_wrote(tmp_path):
    folder, output = done_run(tmp_path / "run"), tmp_path / "page.html"
    run = tfdist("report", folder, "--output", output)
    assert (run.returncode, run.stdout) == (0, f"wrote {output}\n"), run.stderr
    assert output.exists()
    assert not (folder / "report.html").exists()


def test_a_damaged_file_is_named(tmp_path):
    folder = done_run(tmp_path / "run")
    (folder / "report.json").write_text('{"steps": "many"}')
    with pytest.raises(DataError, match=r"report.json: is damaged: .*Expected `int`"):
        write_page([folder])
    (folder / "report.json").unlink()
    (folder / FILE).write_text("nothing of ours\n")
    with pytest.raises(ConfigError, match="is no folder of a run"):
        write_page([folder])


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
WHOLE = st.integers(-(2**62), 2**62)
COUNTS = st.integers(0, 2**63 - 1)
METRICS = st.text(max_size=3).filter(lambda name: name.lower() not in ("nan", "inf"))  # which would be ids
EVENTS = st.one_of(
    st.builds(Progressed, time=NUMBERS, step=COUNTS, steps=st.none() | COUNTS, examples_per_second=st.none() | NUMBERS, loss=st.none() | NUMBERS),
    st.builds(PhaseBegun, time=NUMBERS, phase=st.text(max_size=5)),
    st.builds(EpochEnded, time=NUMBERS, epoch=WHOLE, epochs=WHOLE, logs=st.dictionaries(METRICS, st.none() | NUMBERS, max_size=2)),
    st.builds(RunEnded, time=NUMBERS, seconds=NUMBERS, problem=st.text(max_size=5)),
    st.sampled_from([event for event in events_of_a_run() if not isinstance(event, RunStarted)]),
    st.sampled_from([event for event in events_of_a_run() if isinstance(event, RunStarted)]),
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(EVENTS, min_size=1, max_size=12))
def test_whatever_the_events_there_is_a_page(tmp_path_factory, events):
    folder = write_run(tmp_path_factory.mktemp("runs") / "run", events)
    html = run_page(read_run(folder))
    assert Page(html).headings
    assert not re.search(r'="[^"]*\b(nan|inf)\b', html)
    assert json.loads((folder / FILE).read_text().splitlines()[0])


def test_training_does_not_wait_for_a_checkpoint_in_the_background(tmp_path):
    events = [
        started(""),
        PhaseBegun(phase="training"),
        Progressed(step=0, steps=40),
        CheckpointSaved(step=10, seconds=8.0, waited=0.5),
        RunEnded(seconds=10.0, problem=""),
    ]
    for second, event in enumerate(events):
        event.time = 1.8e9 + 10.0 * second
    phases = phase_seconds(read_run(write_run(tmp_path / "run", events)))
    assert phases["saving checkpoints"] == 0.5


def test_the_time_in_which_a_killed_process_alone_was_gone_does_not_count(tmp_path):
    start = [Configured(config={}), started(""), PhaseBegun(phase="training"), Progressed(step=10, steps=40)]
    events = [*start, *map(msgspec.structs.replace, start), RunEnded(seconds=5.0, problem="")]
    for second, event in enumerate(events):
        event.time = 1.8e9 + second + (36_000.0 if second > 3 else 0.0)
    facts = read_run(write_run(tmp_path / "run", events))
    assert facts.seconds == 7
    assert phase_seconds(facts)["training"] == pytest.approx(3.0, abs=1.0)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_run_that_a_launcher_began_and_one_process_has_finished_is_done(tmp_path, is_killed):
    events = events_of_a_run()
    last = next(index for index, event in enumerate(events) if isinstance(event, CheckpointSaved))
    stopped = LaunchEnded(seconds=3.0, restarts=0, problem="launcher: stopped by SIGTERM; all")
    alone = msgspec.structs.replace(started("digits"), command=["tfdist", "train", "--config", "x.yaml"])
    after = [Configured(config={}), alone, PhaseBegun(phase="training"), Progressed(step=40, steps=40)]
    events = [*events[: last + 1], *([] if is_killed else [stopped]), *after]
    for second, event in enumerate(events):
        event.time = 1.8e9 + second + (3600.0 if event in after else 0.0)
    results = {"steps": 40, "data": "digits", "test_accuracy": 0.8}
    facts = read_run(write_run(tmp_path / "running", events, results))
    assert (facts.problem, facts.results) == (None, None)
    assert facts.seconds == len(events) - 2  # without the hour between the two starts
    ended = RunEnded(time=1.8e9 + 3600 + len(events), seconds=4.0, problem="")
    facts = read_run(write_run(tmp_path / "done", [*events, ended], results))
    assert facts.problem == ""
    assert facts.results.steps == 40


def test_the_steps_of_a_run_that_ended_early_are_those_of_its_results(tmp_path):
    events = events_of_a_run()
    folder = write_run(tmp_path / "run", events, {"steps": 33, "data": "digits", "test_accuracy": 0.8})
    assert "Steps 33 " in page_of(folder).text


def test_of_a_long_run_the_faults_and_the_end_are_shown(tmp_path):
    events = [started("digits")]
    for step in range(1, 1001):
        events += [Evaluated(step=step, results={"loss": 1.0}), CheckpointSaved(step=step, seconds=0.1)]
        if step % 100 == 0:
            events.append(TaskExited(task="worker:1", pid=3, status=-9, was_asked=False, starts_again=True))
    events.append(RunEnded(seconds=5.0, problem="the disk is full"))
    for second, event in enumerate(events):
        event.time = 1.8e9 + second
    text = page_of(write_run(tmp_path / "run", events)).text
    assert "300 of 2,012, without the earlier evaluations and checkpoints" in text
    assert text.count("worker:1 was ended by SIGKILL") == 10
    assert all(words in text for words in ("training starts", "the disk is full", "checkpoint of step 1,000"))
    assert "checkpoint of step 1, saved" not in text

"""Events of a run: written whole and in order, read back as they were, and described in the docs."""

import contextlib
import logging
import os
import threading
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from tfdist.launcher import record_events, run_events, send_reports
from tfdist.launcher.hide_secrets import without_secrets
from tfdist.launcher.record_events import EventFile, events_to_file, listening, record
from tfdist.launcher.report_messages import JoinedPieces, read_line, read_reports
from tfdist.launcher.run_events import (
    FILE,
    EpochEnded,
    Evaluated,
    PhaseBegun,
    Progressed,
    TaskStarted,
    Warned,
    accuracy_of,
    read_events,
)

DOCS = Path(__file__).parents[3] / "docs/events.md"


def test_what_is_recorded_is_read(tmp_path):
    path = tmp_path / "run/events.jsonl"
    with events_to_file(path):
        record(PhaseBegun(phase="training"))
        record(Evaluated(step=3, results={"loss": float("nan"), "accuracy": 0.5}))
        logging.getLogger("tfdist").warning("%s is slow", "worker:1")
    record(PhaseBegun(phase="after the block"))
    phase, evaluated, warned = read_events(path)
    assert (phase.phase, evaluated.results) == ("training", {"loss": None, "accuracy": 0.5})
    assert warned == Warned(text="worker:1 is slow", time=warned.time)
    assert phase.time <= evaluated.time <= warned.time


def test_a_second_start_adds_to_the_file(tmp_path):
    for epoch in (0, 1):
        with events_to_file(tmp_path / "events.jsonl"):
            record(EpochEnded(epoch=epoch, epochs=2, logs={}))
    assert [event.epoch for event in read_events(tmp_path / "events.jsonl")] == [0, 1]


def test_lines_of_others_and_a_torn_last_line_are_left_out(tmp_path):
    path = tmp_path / "events.jsonl"
    good = msgspec.json.encode(TaskStarted(task="worker:0", pid=5))
    path.write_bytes(b'{"event": "of_a_later_version"}\n\xff\n[1]\n' + good + b'\n{"event": "task_st')
    assert read_events(path) == [TaskStarted(task="worker:0", pid=5)]


def test_processes_add_whole_lines(tmp_path):
    path = tmp_path / "events.jsonl"
    path.touch()

    def add(name):
        file = EventFile(path)
        for number in range(200):
            file.add(TaskStarted(task=name * 50, pid=number))
        file.close()

    threads = [threading.Thread(target=add, args=[name]) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_events(path)) == 400


def test_progress_is_written_once_a_second_and_at_the_last_step(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(record_events.time, "monotonic", lambda: now[0])
    file = EventFile(tmp_path / "events.jsonl")
    for step in range(1, 41):
        now[0] += 0.1
        file.add(Progressed(step=step, steps=40, examples_per_second=None, loss=None))
    file.close()
    steps = [event.step for event in read_events(tmp_path / "events.jsonl")]
    assert steps[0] == 1
    assert steps[-1] == 40
    assert 4 <= len(steps) <= 6


def test_a_run_of_a_month_has_a_small_file(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(record_events.time, "monotonic", lambda: now[0])
    file = EventFile(tmp_path / "events.jsonl")
    while now[0] < 30 * 86_400:
        now[0] += 10
        file.add(Progressed(step=int(now[0]), steps=10**9, examples_per_second=1.0, loss=1.0))
    file.close()
    assert (tmp_path / "events.jsonl").stat().st_size < 2_000_000


def test_the_launcher_gets_the_chiefs_events(monkeypatch, tmp_path):
    reader, writer = os.pipe()
    monkeypatch.setenv(send_reports.VARIABLE, send_reports.address(writer))
    monkeypatch.setenv(record_events.VARIABLE, str(tmp_path / "events.jsonl"))
    with events_to_file():  # the launcher has named the file
        record(PhaseBegun(phase="training"))
        record(Warned(text="x" * 5000))  # longer than what a pipe takes whole
    os.close(writer)
    data = os.read(reader, 10_000)
    os.close(reader)
    pieces = JoinedPieces()
    begun, missing, warned = [read_line(pieces.add(line)) for line in data.splitlines()]
    assert (begun.phase, missing, warned.text) == ("training", None, "x" * 5000)
    assert read_line(b'{"step": 3}') == Progressed(3)
    assert read_line(b"neither") is None
    assert len(read_events(tmp_path / "events.jsonl")) == 2
    assert list(read_reports(data)) == []


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path):
    (tmp_path / "file").touch()
    with events_to_file(tmp_path / "file/events.jsonl"):
        record(PhaseBegun(phase="training"))


@pytest.mark.parametrize("kind", get_args(run_events.AnyEvent))
def test_the_docs_describe_every_event_with_its_fields(kind):
    described = DOCS.read_text()
    assert f"`{kind.__struct_config__.tag}`" in described
    for field in kind.__struct_fields__:
        assert f"`{field}`" in described


def test_warnings_are_printed_too_where_a_script_sets_up_no_logging(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # those of pytest
    with record_events.events_to_file(tmp_path / "events.jsonl"):
        logging.getLogger("tfdist").warning("resuming at step 4")
    assert capsys.readouterr().err == "resuming at step 4\n"
    assert '"resuming at step 4"' in (tmp_path / "events.jsonl").read_text()


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("--hf_token=abc", "--hf_token=***"),
        ("--hf-token abc --lr 1", "--hf-token *** --lr 1"),
        ("--token -abc", "--token ***"),
        ("--token --lr 1", "--token --lr 1"),
        ("env WANDB_API_KEY=a=b python x.py", "env WANDB_API_KEY=*** python x.py"),
        ("--set=db.password=a", "--set=db.password=***"),
        ("--Password=a -secret b", "--Password=*** -secret ***"),
        ("--aws_secret_access_key=a --credentials=b", "--aws_secret_access_key=*** --credentials=***"),
        ("--data=https://me:word@host/a?b=c", "--data=https://***@host/a?b=c"),
        ("https://ghp_word@host/a", "https://***@host/a"),
        (
            "https://h/x?token=a&n=1&X-Amz-Signature=b#c sas?sv=1&sig=d",
            "https://h/x?token=***&n=1&X-Amz-Signature=***#c sas?sv=1&sig=***",
        ),
        # What is no secret.
        ("--tokenizer=bert --max_tokens=5", "--tokenizer=bert --max_tokens=5"),
        ("--token_dim=5 --key=5 --secret_file=a", "--token_dim=5 --key=5 --secret_file=a"),
        ("--mail=me@host gs://bucket/a@b", "--mail=me@host gs://bucket/a@b"),
        ("python x.py -- a", "python x.py -- a"),
    ],
)
def test_a_value_is_hidden_whose_name_or_form_says_that_it_is_a_secret(words, shown):
    assert without_secrets(words.split()) == shown.split()


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("Authorization: Bearer a, b", "Authorization: ***"),
        ("--header=X-Api-Key: a", "--header=X-Api-Key: ***"),
        ("--header=X-Api-Key:a b", "--header=X-Api-Key:***"),
        ("X-Api-Key:value", "X-Api-Key:***"),
        ("Authorization:Basic a", "Authorization:***"),
        ("apikey:a", "apikey:***"),
        ("X-Auth-Token:a", "X-Auth-Token:***"),
        ("a Bearer b c", "a Bearer ***"),
        ("--set=model={name: m:f, options: {api_key: a}}", "--set=model={name: m:f, options: {api_key: ***"),
        ('{"lr":1,"token":"a"}', '{"lr":1,"token":***'),
        # What is no secret.
        ("{tokens: 5, tokenizer: bert, name: my:token:1}", "{tokens: 5, tokenizer: bert, name: my:token:1}"),
        ("--job=secret:2", "--job=secret:2"),
        ("--user=Bearer", "--user=Bearer"),
    ],
)
def test_a_secret_in_a_header_or_a_mapping_is_hidden(word, shown):
    assert without_secrets([word]) == [shown]


def test_a_secret_of_several_lines_is_hidden_whole():
    assert without_secrets(["--private_key=a\nb\n"]) == ["--private_key=***"]


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("export=ALL,HF_TOKEN=abc,TF_CPP_MIN_LOG_LEVEL=2", "export=ALL,HF_TOKEN=***,TF_CPP_MIN_LOG_LEVEL=2"),
        ("export API_KEY=abc; python x.py --seed=1", "export API_KEY=***; python x.py --seed=1"),
        ('export TOKEN="a b"; x', "export TOKEN=***; x"),
        ("export TOKEN='abc'; PASSWORD=a\\ b x", "export TOKEN=***; PASSWORD=*** x"),
        ("a=1 tokens=5 monkey=2", "a=1 tokens=5 monkey=2"),
    ],
)
def test_a_secret_within_a_longer_word_is_hidden(word, shown):
    assert without_secrets([word]) == [shown]


def test_a_listener_that_fails_costs_no_event(tmp_path):
    def fails(_):
        raise RuntimeError("gone")

    with events_to_file(tmp_path / FILE), listening(fails), pytest.raises(RuntimeError, match="gone"):
        record(PhaseBegun(phase="training"))
    assert [type(event) for event in read_events(tmp_path / FILE)] == [PhaseBegun]


def test_a_line_of_which_the_disk_takes_a_part_costs_no_other(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:9]))
    with contextlib.closing(EventFile(tmp_path / FILE)) as file:
        file.add(PhaseBegun(phase="training"))
        monkeypatch.setattr(os, "write", write)
        file.add(PhaseBegun(phase="evaluating"))
        file.add(PhaseBegun(phase="exporting"))
    assert [event.phase for event in read_events(tmp_path / FILE)] == ["evaluating", "exporting"]


def test_the_first_event_after_a_torn_line_is_read(tmp_path):
    (tmp_path / FILE).write_bytes(b'{"event":"phase_begun","phase":"loading"}\n{"event":"progr')
    for phase in ("training", "evaluating"):
        with events_to_file(tmp_path / FILE):
            record(PhaseBegun(phase=phase))
    assert [event.phase for event in read_events(tmp_path / FILE)] == ["loading", "training", "evaluating"]
    assert b"\n\n" not in (tmp_path / FILE).read_bytes()


@pytest.mark.parametrize(
    ("logs", "training", "validation"),
    [
        ({"acc": 0.5, "val_acc": 0.4}, 0.5, 0.4),
        ({"accuracy": 0.5, "top_5_accuracy": 0.9, "val_accuracy": 0.4, "val_top_5_accuracy": 0.8}, 0.5, 0.4),
        ({"loss": 1.0, "sparse_categorical_accuracy": 0.5}, 0.5, None),
        ({"acceleration_loss": 12.5, "val_acceleration_loss": 13.5}, None, None),
        ({"age_accuracy": 0.5, "sex_accuracy": 0.9, "val_age_accuracy": 0.4, "val_sex_accuracy": 0.8}, None, None),
        ({"accuracy": None, "val_accuracy": None}, None, None),
    ],
)  # fmt: skip
def test_the_accuracy_is_found_by_its_whole_name(logs, training, validation):
    assert accuracy_of(logs) == training
    assert accuracy_of(logs, is_of_validation=True) == validation


def test_a_warning_that_names_a_path_of_other_bytes_is_recorded(tmp_path, monkeypatch):
    # Otherwise pytest-xdist sends the line between its processes, as UTF-8.
    monkeypatch.setattr(logging.getLogger("tfdist"), "propagate", False)
    monkeypatch.setattr(logging, "lastResort", None)
    with events_to_file(tmp_path / FILE):
        logging.getLogger("tfdist").warning("no folder %s", os.fsdecode(b"a\xff"))
    assert [event.text for event in read_events(tmp_path / FILE)] == ["no folder a\\udcff"]

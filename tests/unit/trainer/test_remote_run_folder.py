"""Keep a run's folders in a store, which is here TensorFlow's own file system by its address."""

import contextlib
import json
from pathlib import Path

import pytest
import tensorflow as tf

from tfdist._utils.object_store import list_files, list_names, read_file, remove_file, write_file
from tfdist._utils.write_files import write_json
from tfdist.errors import StorageError
from tfdist.launcher.record_events import EventFile
from tfdist.launcher.run_events import FILE, Warned, stamped
from tfdist.trainer import remote_run_folder
from tfdist.trainer.remote_run_folder import RemoteRunFolder, fetch_report, newest_step, put_events
from tfdist.trainer.run_folder import find_run_folder
from tfdist.training.checkpoints.checkpoint_files import find_newest, list_steps, prune, save


@pytest.fixture
def address(tmp_path):
    """Return the address of a run that no other test has used."""
    return f"file://localhost{tmp_path}/store/run"  # ram:// appends where a file is written again


@pytest.fixture
def machine(tmp_path, monkeypatch, address):
    """Return a function that returns the run's folders on a machine by its name."""

    def folder(name):
        monkeypatch.setenv("TFDIST_CACHE_DIR", str(tmp_path / name))
        return find_run_folder(address, lambda: Path("x"), {})

    return folder


def start(folder, step=0):
    """Begin a run, as the checkpoint manager does."""
    remote = RemoteRunFolder(folder)
    remote.fetch()
    write_json(folder.checkpoints / "history.json", [step])
    (folder.checkpoints / "reached").write_text(f"{step}\n")
    remote.put_history()
    return remote


def put(remote, folder, step, *, keep=3, also=()):
    save(folder.checkpoints, step, {"a": tf.constant(float(step))}, {})
    prune(folder.checkpoints, keep, also)
    (folder.checkpoints / "reached").write_text(f"{step}\n")
    remote.put_checkpoint(step, keep, also)


def test_another_machine_continues_from_the_newest_checkpoint(machine):
    first = machine("first")
    remote = start(first)
    for step in (1, 2, 3, 4):
        put(remote, first, step, keep=2, also=[1])
    assert list_names(first.address_of(first.checkpoints)) == ["1", "3", "4", "history.json", "reached"]
    second = machine("second")
    assert second.root != first.root
    RemoteRunFolder(second).fetch()
    newest = find_newest(second.checkpoints)
    assert (newest.step, newest.read(newest.variables)) == (4, [4.0])
    assert list_steps(second.checkpoints) == [4]
    assert json.loads((second.checkpoints / "history.json").read_text()) == [0]
    assert (second.checkpoints / "reached").read_text() == "4\n"


def test_what_is_no_checkpoint_of_tfdist_is_left_alone_in_the_store(machine):
    first = machine("first")
    remote = start(first)
    place = first.address_of(first.checkpoints)
    for name in ("2019/notes.txt", "7/about.json", "7/notes.txt", "8"):
        write_file(f"{place}/{name}", b"{}")
    for step in (1, 2):
        put(remote, first, step, keep=1)
    assert list_names(place) == ["2", "2019", "7", "8", "history.json", "reached"]
    assert list_names(f"{place}/7") == ["about.json", "notes.txt"]


def test_old_checkpoints_are_removed_in_the_store_also_by_another_machine(machine):
    first = machine("first")
    remote = start(first)
    for step in (1, 2):
        put(remote, first, step, keep=2)
    second = machine("second")
    put(start(second, 2), second, 3, keep=2)
    assert list_names(second.address_of(second.checkpoints))[:2] == ["2", "3"]


def test_a_checkpoint_without_its_mark_does_not_count(machine, caplog):
    folder = machine("first")
    remote = start(folder)
    put(remote, folder, 1)
    put(remote, folder, 2)
    store = folder.address_of(folder.checkpoints)
    remove_file(f"{store}/2/about.json")
    assert newest_step(store) == 1
    RemoteRunFolder(folder).fetch()
    assert list_steps(folder.checkpoints) == [1]  # the store decides, also where the copy is newer
    assert caplog.messages == [f"{store}/2: about.json is missing; using the checkpoint before it"]


def test_a_damaged_checkpoint_does_not_count(machine, caplog):
    folder = machine("first")
    remote = start(folder)
    put(remote, folder, 1)
    put(remote, folder, 2)
    store = folder.address_of(folder.checkpoints)
    write_file(f"{store}/2/variables.index", b"damaged")
    RemoteRunFolder(machine("second")).fetch()
    assert list_steps(machine("second").checkpoints) == [1]
    assert caplog.messages == [f"{store}/2: variables.index is damaged; using the checkpoint before it"]


def test_the_mark_is_written_last_and_removed_first(machine, monkeypatch):
    folder = machine("first")
    remote = start(folder)
    put(remote, folder, 1)
    store = folder.address_of(folder.checkpoints)

    def interrupted(files, address):
        raise StorageError(address, "cannot be written")

    monkeypatch.setattr(remote_run_folder, "upload", interrupted)
    with pytest.raises(StorageError):
        put(remote, folder, 1)
    assert newest_step(store) is None


def test_nothing_is_left_of_a_run_that_was_removed_from_the_store(machine, address):
    folder = machine("first")
    put(start(folder), folder, 1)
    (folder.summaries / "train").mkdir(parents=True)
    write_json(folder.root / "report.json", {})
    (folder.root / "logs").mkdir()
    tf.io.gfile.rmtree(address)
    RemoteRunFolder(folder).fetch()
    assert sorted(path.name for path in folder.root.iterdir()) == ["checkpoints", "logs"]
    assert list(folder.checkpoints.iterdir()) == []


def test_the_machine_of_the_last_start_knows_the_steps_best(machine):
    first, second = machine("first"), machine("second")
    start(first)
    (first.checkpoints / "reached").write_text("17\n")
    RemoteRunFolder(first).fetch()
    assert (first.checkpoints / "reached").read_text() == "17\n"
    start(second, 5)
    RemoteRunFolder(first).fetch()
    assert (first.checkpoints / "reached").read_text() == "5\n"


def test_the_count_of_steps_is_uploaded_from_time_to_time(machine, monkeypatch):
    folder = machine("first")
    remote = start(folder)
    store = f"{folder.address_of(folder.checkpoints)}/reached"
    monkeypatch.setattr(remote_run_folder, "_SECONDS_BETWEEN_COUNTS", 0.0)
    (folder.checkpoints / "reached").write_text("3\n")
    remote.put_count()
    remote._count.result()
    assert read_file(store) == b"3\n"
    monkeypatch.setattr(remote_run_folder, "_SECONDS_BETWEEN_COUNTS", 1000.0)
    (folder.checkpoints / "reached").write_text("4\n")
    remote.put_count()
    remote._count.result()
    assert read_file(store) == b"3\n"


def test_the_results_are_uploaded_and_old_ones_of_the_same_step_are_not_left(machine, address):
    folder = machine("first")
    remote = start(folder)
    export = folder.export_of(7)
    for name in ("saved_model.pb", "variables/variables.index"):
        (export / name).parent.mkdir(parents=True, exist_ok=True)
        (export / name).write_bytes(b"x")
    (folder.export / "latest").symlink_to("7")
    (folder.summaries / "train").mkdir(parents=True)
    (folder.summaries / "train" / "events").write_bytes(b"1")
    write_json(folder.root / "report.json", {"steps": 7})
    write_file(f"{address}/export/7/model.keras", b"of another start")
    remote.put_results(7)
    assert list(list_files(f"{address}/export")) == [
        "7/saved_model.pb",
        "7/variables/variables.index",
        "latest",
    ]
    assert read_file(f"{address}/export/latest") == b"7\n"
    assert read_file(f"{address}/summaries/train/events") == b"1"
    assert json.loads(read_file(f"{address}/report.json")) == {"steps": 7}


def add(folder, *texts):
    """Add an event for each text, and return the lines."""
    folder.root.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(EventFile(folder.root / FILE)) as file:
        for text in texts:
            file.add(stamped(Warned(text=text)))
    return (folder.root / FILE).read_bytes().splitlines(keepends=True)[-len(texts) :]


def test_the_events_of_all_machines_are_in_the_store_in_order(machine, address):
    first, second = machine("first"), machine("second")
    lines = add(first, "a", "b")
    put(start(first), first, 1)
    assert read_file(f"{address}/{FILE}").splitlines(keepends=True) == lines
    lines += add(first, "was not uploaded")
    lines += add(second, "c")
    put(start(second, 1), second, 2)
    lines += add(first, "d")
    remote = start(first, 2)
    put(remote, first, 3)
    put(remote, first, 4)
    assert read_file(f"{address}/{FILE}").splitlines(keepends=True) == lines
    assert (first.root / FILE).read_bytes() != b"".join(lines)
    put_events(first, is_over=True)
    assert (first.root / FILE).read_bytes() == b"".join(lines)


def test_what_the_page_is_made_of_comes_back_from_the_store(machine, address, tmp_path):
    folder = machine("first")
    remote = start(folder)
    [event] = add(folder, "a")
    (folder.export_of(7)).mkdir(parents=True)
    (folder.export_of(7) / "saved_model.pb").touch()
    (folder.root / "report").mkdir()
    (folder.root / "report" / "answers.json").write_text("{}")
    write_json(folder.root / "report.json", {"steps": 7})
    remote.put_results(7)
    write_file(f"{address}/timeline/timeline.json.gz", b"x")
    fetch_report(address, tmp_path / "copy")
    files = {
        path.relative_to(tmp_path / "copy").as_posix(): path.read_bytes()
        for path in (tmp_path / "copy").rglob("*.*")
    }
    assert files == {
        FILE: event,
        "report.json": b'{\n  "steps": 7\n}\n',
        "report/answers.json": b"{}",
        "timeline/timeline.json.gz": b"x",
    }


def test_an_evaluator_gets_each_complete_checkpoint_and_holds_one_at_a_time(machine):
    folder = machine("first")
    remote = start(folder)
    other = folder.with_copy_for("evaluator")
    reader = RemoteRunFolder(other)
    reader.clear()
    reader.fetch_after(0)
    assert list_steps(other.checkpoints) == []
    put(remote, folder, 1)
    put(remote, folder, 2)
    for step in (1, 2):
        reader.fetch_after(step - 1)
        assert list_steps(other.checkpoints) == [step]
    assert list_steps(folder.checkpoints) == [1, 2]

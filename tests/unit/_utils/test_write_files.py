import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist._utils.write_files import (
    fresh_folder,
    remove_folder,
    remove_partial,
    write_json,
    write_output,
    write_whole,
)
from tfdist.errors import StorageError, TaskLost


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "new" / "report.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert os.listdir(path.parent) == ["report.json"]


@pytest.fixture
def reader(tmp_path):
    """Return a FIFO, and the descriptor of its reading end."""
    os.mkfifo(tmp_path / "fifo")
    descriptor = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    yield tmp_path / "fifo", descriptor
    os.close(descriptor)


def test_output_goes_into_a_fifo_and_does_not_replace_it(reader, tmp_path):
    fifo, descriptor = reader
    (tmp_path / "link").symlink_to(fifo)
    for path in (fifo, tmp_path / "link"):
        write_output(path, b"all of it")
        assert os.read(descriptor, 99) == b"all of it"
    assert fifo.is_fifo()
    assert (tmp_path / "link").is_symlink()
    write_output(tmp_path / "file", b"old")
    write_output(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_output_to_a_stream_follows_what_the_file_of_the_stream_has(tmp_path, name):
    code = (
        "import sys; from pathlib import Path; from tfdist._utils.write_files import write_output\n"
        "write_output(Path(sys.argv[1]), b'new\\n')"
    )
    with (tmp_path / "file").open("w") as file:
        file.write("old\n")
        file.flush()
        subprocess.run([sys.executable, "-c", code, name], stdout=file, timeout=60, check=True)
        file.write("last\n")
    assert (tmp_path / "file").read_text() == "old\nnew\nlast\n"
    piped = subprocess.run([sys.executable, "-c", code, name], capture_output=True, timeout=60, check=True)
    assert piped.stdout == b"new\n"
    assert Path("/dev/stdout").is_symlink()


def test_a_folder_appears_when_all_of_it_is_written(tmp_path):
    final = tmp_path / "exports" / "7"
    with fresh_folder(final) as partial:
        (partial / "sub").mkdir()
        (partial / "sub" / "x").write_text("first")
        assert not final.exists()
    with fresh_folder(final) as partial:
        (partial / "y").write_text("second")
        assert (final / "sub" / "x").read_text() == "first"
    assert os.listdir(final) == ["y"]
    assert os.listdir(final.parent) == ["7"]


def test_a_block_that_fails_leaves_what_was_there(tmp_path):
    final = tmp_path / "7"
    final.mkdir()
    with pytest.raises(UnicodeEncodeError), fresh_folder(final) as partial:
        (partial / "x").write_text("half \ud800", "ascii")
    assert os.listdir(tmp_path) == ["7"]
    assert os.listdir(final) == []


def test_a_folder_that_somebody_removes_right_after_is_no_error(tmp_path, monkeypatch):
    opened = os.open

    def removing(*arguments):
        (tmp_path / "run").rename(tmp_path / "gone")
        return opened(*arguments)

    monkeypatch.setattr(os, "open", removing)
    write_json(tmp_path / "run" / "report.json", {"a": 1})
    assert os.listdir(tmp_path) == ["gone"]


def test_removing_what_is_not_there_is_no_error(tmp_path):
    (tmp_path / "1").mkdir()
    remove_folder(tmp_path / "1")
    remove_folder(tmp_path / "1")
    assert os.listdir(tmp_path) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(path.parent), Path.touch])
def test_what_is_no_folder_is_removed_too(tmp_path, make):
    make(tmp_path / "3")
    make(tmp_path / ".partial-4-1")
    (tmp_path / ".own.partial").mkdir()
    remove_folder(tmp_path / "3")
    remove_partial(tmp_path)
    assert os.listdir(tmp_path) == [".own.partial"]


def test_what_was_killed_in_the_middle_is_removed_later(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tfdist._utils.write_files import fresh_folder, write_whole\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "folder = Path(sys.argv[1])\n"
        "if sys.argv[2] == 'file': write_whole(folder / 'report.json', b'x')\n"
        "with fresh_folder(folder / '7') as partial: (partial / 'x').write_text('half')\n"
    )
    for what in ("file", "folder"):
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path), what], timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL
    (tmp_path / "6").mkdir()
    assert len(os.listdir(tmp_path)) == 3
    remove_partial(tmp_path)
    remove_partial(tmp_path / "not there")
    assert os.listdir(tmp_path) == ["6"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="cannot be written: Permission denied"):
        write_whole(tmp_path / "x", b"")


def test_a_file_in_the_way_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file.* cannot be written: .*(exists|Not a directory)"):
        write_whole(tmp_path / "file" / "x", b"")


_FILL = """
import sys
import time
from pathlib import Path
from pathlib import Path
from tfdist.errors import ConfigError, StorageError
from tfdist._utils.write_files import fresh_folder
folder = Path(sys.argv[1])
try:
    with fresh_folder(folder / "7") as partial:
        (partial / "x").write_bytes(bytes(1 << 22))
except StorageError as error:
    print(error, list(folder.iterdir()))
"""


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path):
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    script = 'mount -t tmpfs -o size=1m none "$0" && exec "$1" -c "$2" "$0"'
    run = subprocess.run(
        [*mount, script, str(tmp_path), sys.executable, _FILL], capture_output=True, text=True, timeout=60
    )
    if "mount:" in run.stderr or "unshare:" in run.stderr:
        pytest.skip(f"no file system can be mounted here: {run.stderr.strip()}")
    assert "cannot be written: No space left on device" in run.stdout, run.stderr
    assert run.stdout.endswith("[]\n")


def test_where_folders_cannot_be_renamed_their_files_are_copied(tmp_path, monkeypatch):
    """Refuse what Cloud Storage FUSE refuses by default."""
    order, copy = [], shutil.copyfile
    for name in ("replace", "rename"):
        monkeypatch.setattr(Path, name, _renaming_no_folders(getattr(Path, name)))
    monkeypatch.setattr(
        shutil, "copyfile", lambda source, target: (order.append(target.name), copy(source, target))
    )
    final = tmp_path / "7"
    for text in ("first", "second"):
        order.clear()
        with fresh_folder(final) as partial:
            (partial / "sub").mkdir()
            for seconds, name in enumerate(("z", "sub/y", "about.json")):
                (partial / name).write_text(text)
                os.utime(partial / name, (seconds, seconds))
            if text == "first":
                (partial / "old").write_text(text)
        assert order[:3] == ["z", "y", "about.json"]  # last what says that all is there
        assert (final / "sub" / "y").read_text() == text
    assert sorted(os.listdir(final)) == ["about.json", "sub", "z"]
    assert os.listdir(tmp_path) == ["7"]
    remove_folder(final)
    assert os.listdir(tmp_path) == []


def _renaming_no_folders(rename):
    def renamed(path, target):
        if path.is_dir():
            raise OSError(errno.EMFILE, "too many open files")
        return rename(path, target)

    return renamed


def test_a_folder_that_is_removed_while_it_is_written_asks_for_another_start(tmp_path):
    run = tmp_path / "run"

    def write():
        with fresh_folder(run / "7") as at:
            shutil.rmtree(run)
            (at / "file").write_text("")

    with pytest.raises(TaskLost, match="removed while it was being written") as caught:
        write()
    assert caught.value.exit_code == 138
    assert not run.exists()


def test_so_does_one_that_is_removed_before_it_gets_its_name(tmp_path, monkeypatch):
    run, fsync = tmp_path / "run", os.fsync

    def removed_after(descriptor):
        fsync(descriptor)
        shutil.rmtree(run)

    monkeypatch.setattr(os, "fsync", removed_after)
    with pytest.raises(TaskLost, match="removed while it was being written"), fresh_folder(run / "7") as at:
        (at / "x").write_text("whole")


def test_a_file_whose_folder_is_removed_asks_for_another_start(tmp_path, monkeypatch):
    sync = os.fsync
    monkeypatch.setattr("os.fsync", lambda file: (sync(file), shutil.rmtree(tmp_path / "run")))
    with pytest.raises(TaskLost, match="removed while it was being written"):
        write_whole(tmp_path / "run" / "report.json", b"{}")

"""Recording from outside: what no task answers, and who may write."""

import os
import socket

import pytest

from tfdist.errors import DataError
from tfdist.profiling.record_from_outside import _hand_to_owner, record_from_outside


def test_tasks_that_record_nothing_are_a_mistake_of_one_line(tmp_path, capfd):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # held, and not listened to: connections are refused
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(DataError, match=r"^timeline: the tasks have recorded nothing: .*\. Record while"):
            record_from_outside({"worker:0": address, "ps:0": address}, tmp_path / "timeline", 0.05)
    assert list((tmp_path / "timeline").iterdir()) == []
    assert capfd.readouterr().out == ""  # TensorFlow writes a line there for each task


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_what_root_makes_belongs_to_the_user_whose_run_it_is(tmp_path):
    folder = tmp_path / "timeline"
    folder.mkdir()
    os.chown(tmp_path, 65534, 65533)
    _hand_to_owner(tmp_path, [folder])
    assert (folder.stat().st_uid, folder.stat().st_gid) == (65534, 65533)

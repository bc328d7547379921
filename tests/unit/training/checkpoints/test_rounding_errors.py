import io
import zipfile

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from tfdist.errors import StorageError
from tfdist.training.checkpoints import rounding_errors
from tfdist.training.checkpoints.rounding_errors import collect_rounding_errors, restore_rounding_errors


class Exchange:
    """One of two workers, and a ring on which the other one sends what it is told."""

    def __init__(self, rank, errors, size=2):
        self.ring = type("Ring", (), {"rank": rank, "size": size})
        self.buckets = type("Buckets", (), {"rounding_errors": errors})
        self.others = b""

    def gathered(self, data):
        both = [data, self.others]
        return both if self.ring.rank == 0 else both[::-1]


@pytest.fixture
def exchange(monkeypatch):
    made = Exchange(0, {"(0, 1) ((2,),)": np.array([1.5, 2.5], np.float32)})
    monkeypatch.setattr(rounding_errors, "_exchange_that_keeps_them", lambda strategy: made)
    return made


def npz(**arrays):
    written = io.BytesIO()
    np.savez(written, **arrays)
    return written.getvalue()


def test_each_worker_gets_its_own_back(tmp_path, monkeypatch, exchange):
    exchange.others = npz(**{"(0, 1) ((2,),)": np.array([3.5, 4.5], np.float32)})
    [(name, data)] = collect_rounding_errors(None, is_chief=True).items()
    assert collect_rounding_errors(None, is_chief=False) == {}
    (tmp_path / name).write_bytes(data)

    for rank, expected in enumerate(([1.5, 2.5], [3.5, 4.5])):
        worker = Exchange(rank, {})
        worker.others = b"" if rank == 0 else data  # only the chief reads the file
        monkeypatch.setattr(rounding_errors, "_exchange_that_keeps_them", lambda strategy, own=worker: own)
        restore_rounding_errors(None, tmp_path if rank == 0 else None, is_chief=rank == 0)
        assert {key: value.tolist() for key, value in worker.buckets.rounding_errors.items()} == {
            "(0, 1) ((2,),)": expected
        }


def test_those_of_another_number_of_workers_are_left_out_with_a_word(tmp_path, caplog, exchange):
    (tmp_path / "rounding_errors.npz").write_bytes(npz(**{f"{rank}/x": np.ones(2) for rank in range(3)}))
    restore_rounding_errors(None, tmp_path, is_chief=True)
    assert exchange.buckets.rounding_errors == {}
    assert "the rounding errors of 3 workers, and they are 2 now" in caplog.text


def test_a_checkpoint_without_them_begins_without_any(tmp_path, caplog, exchange):
    restore_rounding_errors(None, tmp_path, is_chief=True)
    assert exchange.buckets.rounding_errors == {}
    assert not caplog.records


def compressed():
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("0/x.npy", bytes(1000))
    return written.getvalue()


@pytest.mark.parametrize(
    "data", [b"", b"PK", compressed(), npz(x=np.array([{}], object)), npz(x=np.ones(9))[:-40]], ids=range(5)
)
def test_a_file_that_is_none_of_ours_is_refused_in_a_line(tmp_path, exchange, data):
    (tmp_path / "rounding_errors.npz").write_bytes(data)
    with pytest.raises(StorageError, match=r"rounding_errors.npz: cannot be read: .*\. Remove this"):
        restore_rounding_errors(None, tmp_path, is_chief=True)

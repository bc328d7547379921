"""The model to be exported is compared with the one that was trained, by the classes of the test images."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from tfdist.datasets.open_data import open_data
from tfdist.errors import TfdistError
from tfdist.trainer import run_task
from tfdist.trainer.config import Config


@pytest.mark.parametrize(("examples", "wrong", "is_allowed"), [(100, 2, True), (100, 3, False), (2000, 3, True), (2000, 5, False)])  # fmt: skip
@pytest.mark.parametrize("is_kerass", [True, False])
def test_an_image_or_two_may_be_of_another_class(
    tmp_path, cache, monkeypatch, caplog, examples, wrong, is_allowed, is_kerass
):
    data = open_data("digits", examples=(100, examples), cache_dir=cache)
    answers = np.array(data.split("test").arrays()[1])
    answers[:wrong] = (answers[:wrong] + 1) % 10
    monkeypatch.setattr(run_task, "classify", lambda *_: (answers, np.ones((examples, 10))))
    monkeypatch.setattr(run_task, "write_answers", lambda *_: None)
    context = SimpleNamespace(config=Config(), data=data, folder=SimpleNamespace(root=tmp_path))
    run = SimpleNamespace(show_answers=lambda *_: None, counts_right_classes=is_kerass)

    def check():
        run_task._check_answers(context, run, None, "logits", float(np.float32(1)))

    if is_allowed or not is_kerass:  # an accuracy of the user's own may be another number
        check()
        is_warned = "ATTENTION: the model's own metric accuracy is 1.0000, but" in caplog.text
        assert is_warned != is_allowed
    else:
        with pytest.raises(TfdistError, match=r"^the model to be exported: classifies 0\.9"):
            check()


@pytest.mark.parametrize(("begun_at", "sent"), [(4, {"worker:0": 3}), (10, {})])
def test_the_report_has_the_bytes_of_a_step_if_there_was_one(tmp_path, cache, monkeypatch, begun_at, sent):
    monkeypatch.setattr(run_task, "build_model", lambda *_: SimpleNamespace(set_weights=lambda _: None))
    monkeypatch.setattr(run_task, "_check_answers", lambda *_: None)
    monkeypatch.setattr(run_task, "_export", lambda *_: tmp_path)
    data = open_data("digits", examples=(100, 100), cache_dir=cache)
    context = SimpleNamespace(config=Config(), data=data, folder=SimpleNamespace(shown=str))
    run = SimpleNamespace(step=10, begun_at=begun_at, skipped_batches=[], history=(), seconds_before=100.0)
    results = {"accuracy": 1.0, "loss": 0.0}
    report = run_task._report(context, run, [], "logits", results, {"worker:0": 18}, time.monotonic())
    assert report.bytes_sent_per_step == sent
    assert report.seconds >= 100.0

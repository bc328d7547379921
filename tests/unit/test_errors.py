import errno
import io
import sys

import pytest

from tfdist.errors import (
    ConfigError,
    DataError,
    StorageError,
    TaskLost,
    TfdistError,
    did_you_mean,
    exit_with_status,
    first_line,
    is_near,
    shown,
)


@pytest.mark.parametrize(
    ("kind", "builtin", "status"),
    [
        (ConfigError, ValueError, 2),
        (DataError, ValueError, 2),
        (StorageError, OSError, 2),
        (TaskLost, RuntimeError, 138),
    ],
)
def test_each_is_a_builtin_too_and_has_an_exit_status(kind, builtin, status):
    error = kind("x.yaml:3: train.steps", expected="a number", received="'many'", remedy="Write 100")
    assert isinstance(error, (builtin, TfdistError))
    assert isinstance(error, builtin)
    assert error.exit_code == status
    assert str(error) == "x.yaml:3: train.steps: expected a number, received 'many'. Write 100"


def test_a_message_is_one_line_whatever_it_quotes():
    text = str(ConfigError("a\nb.yaml", "has\x1b[31m colour\r", remedy="\ud800 \u2028"))
    assert text.isprintable()
    assert "\\n" in text
    assert "\\x1b" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\n", r"'a\n'"),
        ([1] * 9, "a list of 9"),
        ({}, "a dict of 0"),
        (1 << 5000, "an integer of 5001 bits"),
        (None, "None"),
    ],
)
def test_shown_quotes_and_escapes(value, text):
    assert shown(value) == text


def test_shown_cuts_what_is_long():
    assert len(shown("x" * 10**7)) <= 80


def test_an_unknown_word_gets_the_nearest_known_one_or_all():
    assert did_you_mean("workers", ["chief", "worker"]) == "Did you mean 'worker'?"
    assert did_you_mean("zzz", ["chief", "worker"]) == "Known: chief, worker"


def test_is_near():
    assert is_near("clustre", "cluster")
    assert not is_near("data", "cluster")
    assert not is_near("cluster" * 10**6, "cluster")


def test_an_error_has_a_line_also_without_text():
    assert first_line(ValueError("\none\ntwo")) == "one"
    assert first_line(ValueError()) == first_line(ValueError("\n")) == "ValueError"


def test_an_error_ends_the_process_with_its_status(capsys):
    def main():
        raise TaskLost("worker:1", "is silent")

    with pytest.raises(SystemExit) as ended:
        exit_with_status(main)
    assert ended.value.code == 138
    assert capsys.readouterr().err == "tfdist: worker:1: is silent\n"


def test_a_full_disk_behind_the_log_leaves_the_status(monkeypatch):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    def main():
        raise TaskLost("worker:1", "is silent")

    monkeypatch.setattr(sys, "stderr", Full())
    with pytest.raises(SystemExit) as ended:
        exit_with_status(main)
    assert ended.value.code == 138

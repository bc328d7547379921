import os
from typing import Annotated, Literal

import msgspec
import pytest

from tfdist._utils.read_yaml_and_json import check_not_stream, decode, read_json, read_yaml, read_yaml_file
from tfdist.errors import ConfigError


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    rate: float = 0.1
    names: list[str] = []


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    train: Inner = msgspec.field(default_factory=Inner)
    steps: int = 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1.", 1.0),
        (".5", 0.5),
        ("-7", -7),
        ("007", 7),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("2026-01-01", "2026-01-01"),
        ("0x10", "0x10"),
        ("10.0.0.1:2222", "10.0.0.1:2222"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("!", ""),
        ("[a, 1]", ["a", 1]),
    ],
)
def test_scalars_follow_the_core_schema_of_yaml_1_2(text, value):
    read = read_yaml(f"key: {text}".encode(), "x.yaml").value["key"]
    assert read == value
    assert type(read) is type(value)


def test_places_are_the_lines_of_the_file():
    source = read_yaml(b"# note\ncluster:\n  worker:\n    - a:1\n    - b:1\n", "x.yaml").source
    assert source.at("cluster", "worker", 1) == "x.yaml:5: cluster.worker[1]"
    assert source.inside("cluster").at("worker") == "x.yaml:3: cluster.worker"
    assert source.inside("cluster").at("ps", 3) == "x.yaml:2: cluster.ps[3]"  # missing: the nearest around it


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "x.yaml: is empty"),
        (b"# only a comment\n", "x.yaml: is empty"),
        (b"- a\n", "x.yaml: expected a mapping (key: value), received a list of 1"),
        (b"a: 1\nb: 2\na: 3\n", "x.yaml:3:1: key 'a' is also at x.yaml:1. Remove one"),
        (b"a: &x [1]\nb: *x\n", "x.yaml:1:4: anchors and aliases are not supported. Write the value out"),
        (
            b"a: !!python/object:os.system 1\n",
            "x.yaml:1:4: the tag 'tag:yaml.org,2002:python/object:os.system'",
        ),
        (b"a: !!set {x}\n", "x.yaml:1:4: the tag"),
        (b"? [1]\n: 2\n", "x.yaml:1:3: a key must be a plain word. Write key: value"),
        (b"a: [1\n", "x.yaml:2:1: malformed YAML: did not find expected ',' or ']'"),
        (b"a:\n\t- b\n", "x.yaml:2:1: malformed YAML"),
        (
            b"a: 1\n---\nb: 2\n",
            "x.yaml:2:1: a second document starts here. Keep only one document in the file",
        ),
        (b"a: \xff\n", "x.yaml: is not UTF-8: byte 4 is 0xff"),
        (b"a: \x00\n", "x.yaml: malformed YAML"),
        (b"a: 1e999\n", "x.yaml:1:4: the number '1e999' is too large"),
        (b"a: " + b"[" * 100_000, "x.yaml:1:36: nested too deeply. At most 32 levels"),
        (b"x" * 10_000_000, "x.yaml: expected at most 256 KiB, received more"),
    ],
)
def test_what_is_no_config_is_one_line_with_its_place(data, message):
    with pytest.raises(ConfigError) as caught:
        read_yaml(data, "x.yaml")
    assert str(caught.value).startswith(message)
    assert str(caught.value).isprintable()


def test_a_bomb_of_aliases_is_refused_at_its_first_anchor():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 40)]
    with pytest.raises(ConfigError, match="anchors and aliases"):
        read_yaml("\n".join(lines).encode(), "bomb.yaml")


def test_a_bom_is_not_part_of_the_first_key():
    assert read_yaml(b"\xef\xbb\xbfa: 1", "x").value == {"a": 1}


@pytest.mark.parametrize("path", ["no/such.yaml", ".", "nul\0byte"])
def test_a_file_that_cannot_be_read_is_named(path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml_file(path)


def test_a_fifo_is_refused_and_a_pipe_of_the_shell_is_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="cannot be read: is not a regular file"):
        read_yaml_file(tmp_path / "fifo")
    reading, writing = os.pipe()
    os.write(writing, b"a: 1")
    os.close(writing)
    assert read_yaml_file(f"/dev/fd/{reading}").value == {"a": 1}
    os.close(reading)


def test_a_stream_is_refused_where_it_is_read_again():
    for path in ("/dev/stdin", "/dev/fd/63", "/proc/self/fd/5"):
        with pytest.raises(ConfigError, match=f"^--config {path}: is a stream, .*Write it to a file first$"):
            check_not_stream(path)
    check_not_stream("/dev/shm/a.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "V: column 2: malformed JSON"),
        ('{"a": 1,\n "b" 2}', "V: line 2, column 6: malformed JSON"),
        ("[]", 'V: expected a JSON object like {"cluster": …, "task": …}, received a list of 0'),
        ('{"a": 1, "a": 2}', "V: one object has key 'a' twice"),
        ('{"a": NaN}', "V: NaN is not JSON"),
        ('{"a": ' + "9" * 5000 + "}", "V: a number is too long. At most 18 digits"),
        ('{"a":' * 100_000, "V: expected at most 256 KiB"),
        ('{"a":' * 40_000, "V: nested too deeply"),
        ("\udcff", "V: is not UTF-8: byte 1 is 0xff"),
        ("\ud800", "V: column 1: malformed JSON: a lone surrogate"),
    ],
)
def test_malformed_json_is_one_line_with_its_column(text, message):
    with pytest.raises(ConfigError) as caught:
        read_json(text, "V")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train:\n  rats: 1", "x.yaml:2: train.rats: unknown key. Did you mean 'rate'?"),
        ("a: 1\nzzzz: 1", "x.yaml:1: a: unknown key. Known: steps, train"),
        ("train:\n  rate: fast", "x.yaml:2: train.rate: expected a number, received 'fast'"),
        ("steps: true", "x.yaml:1: steps: expected a whole number, received True"),
        ("train:\n  names:\n    - a\n    - 7", "x.yaml:4: train.names[1]: expected a text, received 7"),
        ("train: 3", "x.yaml:1: train: expected a mapping, received 3"),
    ],
)
def test_decoding_is_strict_and_names_the_line(text, message):
    with pytest.raises(ConfigError) as caught:
        decode(read_yaml(text.encode(), "x.yaml"), Outer)
    assert str(caught.value).startswith(message)


def test_decoding_gives_the_type():
    read = decode(read_yaml(b"steps: 5\ntrain: {rate: 1, names: [a]}", "x"), Outer)
    assert read == Outer(train=Inner(rate=1.0, names=["a"]), steps=5)


class Deep(msgspec.Struct, forbid_unknown_fields=True):
    amounts: dict[str, dict[str, float]] = {}  # msgspec copies it
    kind: Literal["first", "second"] | None = None


class Around(msgspec.Struct, forbid_unknown_fields=True):
    inner: Annotated[Deep, msgspec.Meta(description="x")] = msgspec.field(default_factory=Deep)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inner: {amounts: {a: {x: 1}, b: {x: 1, y: one}}}", "f:1: inner.amounts.b.y: expected a number, received 'one'"),
        ("inner: {amounts: {a: {x: 1}, b: 3}}", "f:1: inner.amounts.b: expected a mapping, received 3"),
        ("inner: {kind: secnd}", "f:1: inner.kind: there is no 'secnd'. Did you mean 'second'?"),
        ("inner: {knd: second}", "f:1: inner.knd: unknown key. Did you mean 'kind'?"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_by_its_path(text, message):
    with pytest.raises(ConfigError) as caught:
        decode(read_yaml(text.encode(), "f"), Around)
    assert str(caught.value) == message


def test_a_section_that_a_value_makes_has_the_place_of_the_value():
    document = read_yaml(b"train: {steps: 7}", "x.yaml").with_value("a.b.c", 1, "--set a.b.c=1")
    assert document.source.at("a") == "--set a.b.c=1: a"
    assert document.source.at("train") == "x.yaml:1: train"

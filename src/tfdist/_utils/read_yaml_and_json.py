"""Read YAML and JSON from untrusted sources, with the line of each value.

For any bytes, both readers soon return plain values or raise a `ConfigError` of one line.

Scalars follow the core schema of YAML 1.2, so `1e-3` is a number, and `no` and `12:30` are texts (PyYAML
itself follows YAML 1.1). Anchors, aliases, tags and merge keys are not supported: a config does not need
them, and through aliases a short file could expand into a large value.
"""

import json
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, TypeVar

import msgspec
import yaml

from tfdist._utils.read_untrusted_files import opened_regular
from tfdist.errors import ConfigError, did_you_mean, first_line, shown

# A usual config has a page or two. The limit allows ten thousand host names.
_MOST_BYTES = 256 * 1024
_MOST_DEPTH = 32
_MOST_DIGITS = 18
_LONGEST_KEY = 60

Path = tuple[str | int, ...]
T = TypeVar("T")

# Names of pipes that somebody writes to: standard input, and those that a shell makes for `<(...)`.
_STREAMS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")

# libyaml's parser is about ten times as fast as PyYAML's own, the only one on a platform without wheels.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Source:
    """The place that values come from: a file, a variable, or a call."""

    name: str
    within: Path = ()
    places: Mapping[Path, str] = field(default_factory=dict)

    def at(self, *path: str | int) -> str:
        """Return the place of a value: `cluster.yaml:7: cluster.worker[1]`.

        For a missing value, this is the line of the nearest section around it.
        """
        full = self.within + path
        around = (full[:n] for n in range(len(full), -1, -1))
        place = next((self.places[path] for path in around if path in self.places), self.name)
        return f"{place}: {_dotted(full)}" if full else place

    def inside(self, *path: str | int) -> "Source":
        """Return the source of a part; its paths start at that part."""
        return Source(self.name, self.within + path, self.places)


@dataclass(frozen=True)
class Document:
    """Plain values, and their source."""

    value: Any
    source: Source

    def part(self, key: str) -> "Document":
        """Return the document below one key of a mapping; a missing key is an empty mapping."""
        return Document(self.value.get(key, {}), self.source.inside(key))

    def with_value(self, key: str | tuple[str, ...], value: Any, place: str) -> "Document":
        """Return a copy of the document with one value set, and with the sections that it needs."""
        path = tuple(key.split(".")) if isinstance(key, str) else key
        *above, last = path
        changed: dict[str, Any] = dict(self.value)
        inner, made = changed, dict[Path, str]({path: place})
        for depth, key in enumerate(above):
            if key not in inner:
                made[path[: depth + 1]] = place
            below = inner.get(key, {})
            if not isinstance(below, dict):
                problem = f"{_dotted(path[: depth + 1])} is not a section"
                raise ConfigError(place, problem, remedy=f"It is {shown(below)}")
            inner[key] = inner = dict(below)
        inner[last] = value
        places = {old: name for old, name in self.source.places.items() if old[: len(path)] != path}
        return Document(changed, Source(self.source.name, (), {**places, **made}))


def read_yaml_file(path: str | PathLike[str]) -> Document:
    """Read a YAML file that contains one mapping."""
    name = str(path)
    try:
        with open(path, "rb") if name.startswith(_STREAMS) else opened_regular(path) as file:
            data = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(name, f"cannot be read: {reason}", remedy="Name a YAML file") from None
    return read_yaml(data, name)


def check_not_stream(path: str) -> None:
    """Raise ConfigError for a stream such as /dev/stdin, which whoever reads it next finds empty."""
    if path.startswith(_STREAMS):
        problem = "is a stream, which can be read only once, and this command needs it again"
        raise ConfigError(f"--config {path}", problem, remedy="Write it to a file first")


def read_yaml(data: bytes, name: str) -> Document:
    """Read one YAML mapping from bytes; `name` is the file's name in messages."""
    text = _decoded(data, name)
    places: dict[Path, str] = {}
    try:
        value = _Builder(yaml.parse(text, Loader=_Loader), name, places).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if mark and "nesting depth" in (error.problem or ""):
            # libyaml reads ahead, and from 0.2.6 on it stops at its own maximum depth. The first level that
            # is too deep for tfdist comes before that place.
            return read_yaml(text[: mark.index].encode(), name)
        place = name if mark is None else f"{name}:{mark.line + 1}:{mark.column + 1}"
        raise ConfigError(place, f"malformed YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(name, f"malformed YAML: {first_line(error)}") from None
    if not isinstance(value, dict):
        raise ConfigError(name, expected="a mapping (key: value)", received=shown(value))
    return Document(value, Source(name, (), places))


def read_json(text: str, name: str) -> Document:
    """Read one JSON object from text; `name` is the variable's name in messages."""
    try:
        data = text.encode("utf-8", "surrogateescape")  # os.environ's form of bytes that are not UTF-8
    except UnicodeEncodeError as error:
        raise ConfigError(f"{name}: column {error.start + 1}", "malformed JSON: a lone surrogate") from None
    text = _decoded(data, name)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for key, item in pairs:
            if key in value:
                raise ConfigError(name, f"one object has key {shown(key)} twice", remedy="Remove one")
            value[key] = item
        return value

    def refused(word: str) -> float:
        raise ConfigError(name, f"{word} is not JSON")

    def integer(digits: str) -> int:
        if len(digits) > _MOST_DIGITS:
            raise ConfigError(name, "a number is too long", remedy=f"At most {_MOST_DIGITS} digits")
        return int(digits)

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=refused, parse_int=integer)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}" if "\n" in text else f"column {error.colno}"
        raise ConfigError(f"{name}: {place}", f"malformed JSON: {error.msg}") from None
    except RecursionError:
        raise ConfigError(name, "nested too deeply", remedy=f"At most {_MOST_DEPTH} levels") from None
    if not isinstance(value, dict):
        raise ConfigError(
            name, expected='a JSON object like {"cluster": …, "task": …}', received=shown(value)
        )
    return Document(value, Source(name))


def decode(document: Document, type_: type[T], renamed: Mapping[tuple[str, ...], str] | None = None) -> T:
    """Convert a document to a typed value; raise at an unknown key or a value of another type.

    Args:
        document: The plain values.
        type_: The type of the result.
        renamed: The new names of old keys, by their paths.

    Raises:
        ConfigError: A key is unknown or was renamed, or a value has a wrong type.
    """
    try:
        return msgspec.convert(document.value, type_, strict=True)
    except msgspec.ValidationError as error:
        problem = str(error).partition(" - at ")[0]
        path = _path_of(str(error), document.value, type_)
        unknown = re.match(r"Object contains unknown field `(.*)`", problem, re.DOTALL)
        if unknown:
            structs = filter(_is_struct, _types_at(type_, path))
            known = sorted({f.encode_name for struct in structs for f in msgspec.structs.fields(struct)})
            where = document.source.at(*path, unknown[1])
            new = (renamed or {}).get((*map(str, path), unknown[1]))
            if new is not None:
                raise ConfigError(where, "was renamed", remedy=f"Write {new}") from None
            raise ConfigError(where, "unknown key", remedy=did_you_mean(unknown[1], known)) from None
        if problem.startswith("Invalid enum value"):
            value = _value_at(document.value, path)
            choices = [choice for t in _types_at(type_, path) for choice in typing.get_args(t)]
            problem, remedy = f"there is no {shown(value)}", did_you_mean(value, choices)
            raise ConfigError(document.source.at(*path), problem, remedy=remedy) from None
        if problem.startswith("Expected"):
            expected = _in_words(problem.removeprefix("Expected ").partition(", got ")[0])
            received = shown(_value_at(document.value, path))
            raise ConfigError(document.source.at(*path), expected=expected, received=received) from None
        raise ConfigError(document.source.at(*path), problem.replace("`", "'")) from None


class _Builder:
    """Builds plain values from YAML events, and records the line of each path."""

    def __init__(self, events: Iterator[Any], name: str, places: dict[Path, str]) -> None:
        self._events = events
        self._name = name
        self._places = places

    def document(self) -> Any:
        """Build the only document of the stream."""
        next(self._events)  # StreamStart
        if isinstance(next(self._events), yaml.StreamEndEvent):
            raise ConfigError(self._name, "is empty")
        value = self._value(next(self._events), ())
        next(self._events)  # DocumentEnd
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise self._error(after, "a second document starts here", "Keep only one document in the file")
        return value

    def _value(self, event: Any, path: Path) -> Any:
        if len(path) > _MOST_DEPTH:
            raise self._error(event, "nested too deeply", f"At most {_MOST_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent) or event.anchor:
            raise self._error(event, "anchors and aliases are not supported", "Write the value out")
        if event.tag and event.tag != "!":
            raise self._error(event, f"the tag {shown(event.tag)} is not supported", "Remove it")
        self._note(event, path)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event) if event.implicit[0] else event.value
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
                items.append(self._value(event, (*path, len(items))))
            return items
        return self._mapping(path)

    def _mapping(self, path: Path) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent) or event.anchor or event.tag:
                raise self._error(event, "a key must be a plain word", "Write key: value")
            key, place = event.value, (*path, event.value)
            if key in mapping:
                problem = f"key {shown(key)} is also at {self._places[place]}"
                raise self._error(event, problem, "Remove one")
            self._note(event, place)
            mapping[key] = self._value(next(self._events), place)
        return mapping

    def _note(self, event: Any, path: Path) -> None:
        self._places.setdefault(path, f"{self._name}:{event.start_mark.line + 1}")

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        if text in ("", "~", "null", "Null", "NULL"):
            return None
        if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
            return text[0] in "tT"
        if re.fullmatch(rf"[-+]?[0-9]{{1,{_MOST_DIGITS}}}", text):
            return int(text)
        if re.fullmatch(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", text):
            if math.isinf(number := float(text)):
                raise self._error(event, f"the number {shown(text)} is too large")
            return number
        return text

    def _error(self, event: Any, problem: str, remedy: str = "") -> ConfigError:
        mark = event.start_mark
        return ConfigError(f"{self._name}:{mark.line + 1}:{mark.column + 1}", problem, remedy=remedy)


def _decoded(data: bytes, name: str) -> str:
    if len(data) > _MOST_BYTES:
        raise ConfigError(name, expected=f"at most {_MOST_BYTES // 1024} KiB", received="more")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            name, f"is not UTF-8: byte {error.start + 1} is 0x{data[error.start]:02x}"
        ) from None


def _dotted(path: Path) -> str:
    # A key of an untrusted file may be as long as the whole file.
    words = (f"[{step}]" if isinstance(step, int) else f".{step[:_LONGEST_KEY]}" for step in path)
    return "".join(words).removeprefix(".")


def _path_of(error: str, value: Any, type_: Any) -> Path:
    """Return the path in msgspec's error, such as `$.data.classes[2]`."""
    steps = re.findall(r"\[(\.\.\.)\]|\.([^.\[]+)|\[(\d+)\]", error.partition(" - at ")[2].strip("`"))
    path: Path = ()
    for is_any_key, name, index in steps:
        if not is_any_key:
            path += (name or int(index),)
            continue
        # msgspec does not say which key of a mapping has the error: it is the one that has it alone too.
        for key, inner in _value_at(value, path).items():
            alone = _with_value_at(value, path, {key: inner})
            try:
                msgspec.convert(alone, type_, strict=True)
            except msgspec.ValidationError as again:
                if str(again) == error:
                    path, value = (*path, key), alone
                    break
    return path


def _with_value_at(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    changed = value.copy()
    changed[path[0]] = _with_value_at(value[path[0]], path[1:], new)
    return changed


def _in_words(names: str) -> str:
    """Return msgspec's names of types, such as `int | array | null`, in the words of a YAML file's reader."""
    words = {
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "str": "a text",
        "array": "a list",
        "object": "a mapping",
        "null": "nothing",
    }
    names, _, bound = names.partition("` ")
    translated = [words.get(name, name) for name in names.strip("`").split(" | ") if name != "null"]
    return " ".join(filter(None, [" or ".join(translated or ["nothing"]), bound]))


def _value_at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def _types_at(type_: Any, path: Path) -> list[Any]:
    """Return the types that a value at a path may have."""
    found = _alternatives(type_)
    for step in path:
        found = [inner for outer in found for inner in types_below(outer, step)]
    return found


def types_below(type_: Any, step: str | int) -> list[Any]:
    """Return the types that the value of a key or index of a type may have."""
    if _is_struct(type_):
        return [
            t for f in msgspec.structs.fields(type_) if f.encode_name == step for t in _alternatives(f.type)
        ]
    arguments = typing.get_args(type_)  # of a list or a mapping
    return _alternatives(arguments[-1]) if arguments else []


def _alternatives(type_: Any) -> list[Any]:
    """Return the types of a union, without what annotates them."""
    origin, arguments = typing.get_origin(type_), typing.get_args(type_)
    if origin is typing.Annotated:
        return _alternatives(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return [inner for argument in arguments for inner in _alternatives(argument)]
    return [type_]


def _is_struct(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)

"""The code base keeps to the words of the field: no metaphors of its own in code, logs, docs and tests."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "docs", "examples", "benchmarks", "configs")
ENDINGS = (".py", ".md", ".yaml", ".toml")
# What each was called, and what it is called now.
METAPHORS = {
    "post": "the TCP transport",
    "parcel": "message",
    "freight": "codec",
    "shelf": "shared buffer",
    "shelves": "shared buffers",
    "warden": "supervisor",
    "nursery": "fork server",
    "scribe": "log writer",
    "farewell": "shutdown",
    "rollcall": "rendezvous",
    "roll-call": "rendezvous",
    "crossing": "transfer",
    "crossings": "transfers",
    "standing": "cache",
    "keeper": "checkpoint manager",
    "gauge": "step statistics",
    "beginnings": "iterators",
    "cutter": "partitioner",
    "unmet": "not connected",
}
# In texts that users read; and the first words of docstrings that do not say what a function does.
STILTED = re.compile(r"\b(anew|go on|goes on|going on|gone on|is no number)\b")
VAGUE_VERB = re.compile(r'"""(Be|Give|Have|Hold|Know|Let|Say|Take) ')
# Prometheus's own names of classes are its users' words.
WORD = re.compile(rf"(?<![\w-])(?<!client\.)({'|'.join(METAPHORS)})(?![\w-])", re.IGNORECASE)


def test_no_metaphor_stands_for_a_word_of_the_field():
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in ENDINGS]
    files += sorted(ROOT.glob("*.md"))
    assert len(files) > 300
    found = [
        f"{path.relative_to(ROOT)}:{number}: {word[0]}: say {METAPHORS[word[0].lower()]}"
        for path in files
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for word in WORD.finditer(line)
    ]
    assert not found, "\n".join(found)


def test_users_read_plain_words():
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]
    assert len(files) > 200
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := STILTED.search(line))
    ]
    assert not found, "\n".join(found)


def test_docstrings_begin_with_an_exact_verb():
    folders = ("src", "tests", "benchmarks", "examples")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    files += [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]
    assert len(files) > 400
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := VAGUE_VERB.search(line))
    ]
    assert not found, "\n".join(found)

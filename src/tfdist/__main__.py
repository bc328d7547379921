"""Dispatch `tfdist <verb>` to `python -m tfdist.<verb>`: both are the same program."""

import runpy
import sys

from tfdist import __version__
from tfdist.errors import did_you_mean

__all__ = ["main"]

_VERBS = {
    "bench": "Measure how fast a config trains here, where the time goes, and what would help.",
    "train": "Train on the cluster that a config file describes, and export the model.",
    "launch": "Start a script of your own as a cluster on this machine.",
    "plan": "Print the TF_CONFIG of every task, and the command to type on its host.",
    "predict": "Ask an exported model about images, a folder of them, or a data set.",
    "verify": "Prove that the cluster computes what one process computes, step by step.",
    "simulate": "Predict how fast clusters of many sizes train, and what would help.",
    "schema": "Print the JSON Schema of the config file.",
}


def main() -> None:
    """Run the verb that the command line names."""
    verb, *rest = sys.argv[1:] or [""]
    if verb in _VERBS:
        sys.argv = [f"tfdist {verb}", *rest]
        runpy.run_module(f"tfdist.{verb}", run_name="__main__", alter_sys=True)
    elif verb in ("--version", "version"):
        print(f"tfdist {__version__}")
    elif verb in ("-h", "--help", "help"):
        print(_usage())
    elif verb:
        sys.exit(_mistake(f"tfdist: unknown verb {verb!r}. {did_you_mean(verb, _VERBS)}"))
    else:
        sys.exit(_mistake(_usage()))


def _mistake(text: str) -> int:
    print(text, file=sys.stderr)
    return 2


def _usage() -> str:
    verbs = [f"  {verb:<8} {text}" for verb, text in _VERBS.items()]
    return "\n".join(
        ["usage: tfdist <verb> [--flags]      (the same as python -m tfdist.<verb>)", "", *verbs]
    )


if __name__ == "__main__":
    main()

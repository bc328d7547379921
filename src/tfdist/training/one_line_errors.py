"""Print the errors of tfdist in one line, where nothing in a script catches them."""

import sys
import traceback
from types import TracebackType

from tfdist.errors import TfdistError

__all__ = ["print_own_errors_in_a_line"]


def print_own_errors_in_a_line() -> None:
    """Print an uncaught error of tfdist in one line from now on, and end the process with its exit status."""
    if getattr(sys.excepthook, "__module__", None) == __name__:
        return
    others = sys.excepthook

    def print_own(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        own = error
        while type(own).__name__ == "StagingError" and own.__context__ is not None:
            own = own.__context__  # AutoGraph raised it in a step of the script
        if not isinstance(own, TfdistError):
            others(kind, error, trace)
            return
        line = next(iter(traceback.extract_tb(trace, limit=1)), None)
        where = "" if line is None else f" ({line.filename}, line {line.lineno})"
        print(f"tfdist: {own}{where}", file=sys.stderr, flush=True)
        raise SystemExit(own.exit_code)  # Python ends the process with this status

    sys.excepthook = print_own

"""Describe what a check has found, in one line: ok, or a warning or a failure with its remedy."""

from typing import Literal

import msgspec

from tfdist.errors import TfdistError, printable

Group = Literal["This machine", "Cluster", "Run"]
MACHINE: Group = "This machine"
CLUSTER: Group = "Cluster"
RUN: Group = "Run"

_WIDEST_CHECK = 13


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check.

    Attributes:
        group: What was checked: this machine, the cluster, or the run.
        check: The name of the check.
        state: How it went. A warning costs speed or may become a failure; with a failure, no run succeeds.
        found: What was found.
        remedy: What to do about a warning or a failure; empty if all is well.
    """

    group: Group
    check: str
    state: Literal["ok", "warning", "failed"]
    found: str
    remedy: str = ""

    @property
    def label(self) -> str:
        """Return what the line that users read begins with: state and check."""
        return f"  {self.state:<7}  {self.check:<{_WIDEST_CHECK}}  "

    @property
    def text(self) -> str:
        """Return the rest of that line; what comes from elsewhere obeys no terminal's escapes."""
        return printable(f"{self.found}. {self.remedy}" if self.remedy else self.found)

    def __str__(self) -> str:
        """Return the line that users read."""
        return self.label + self.text


class Findings:
    """Make the findings of one group."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def ok(self, check: str, found: str) -> Finding:
        """Return the finding that all is well."""
        return Finding(group=self._group, check=check, state="ok", found=found)

    def warning(self, check: str, found: str, remedy: str) -> Finding:
        """Return the finding that something is worse than it could be."""
        return Finding(group=self._group, check=check, state="warning", found=found, remedy=remedy)

    def failed(self, check: str, found: str, remedy: str) -> Finding:
        """Return the finding that a run cannot succeed."""
        return Finding(group=self._group, check=check, state="failed", found=found, remedy=remedy)

    def warning_if(self, bad: bool, check: str, found: str, remedy: str) -> Finding:
        """Return a warning under a condition, and otherwise that all is well."""
        return self.warning(check, found, remedy) if bad else self.ok(check, found)


def failure_of(group: Group, check: str, error: TfdistError) -> Finding:
    """Return the finding that an error of the library's stands for."""
    found = f"{error.where}: {error.problem}"
    remedy = error.remedy or f"Correct {error.where}"
    return Finding(group=group, check=check, state="failed", found=found, remedy=remedy)

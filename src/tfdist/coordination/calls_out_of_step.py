"""Compare which calls of tfdist the tasks of a script are in, where all must make the same calls in order.

Each task numbers its calls, of `fit`, `evaluate` and so on. Tasks are out of step for certain if two are in
calls of one number and of different names, or if one is in a call that another has ended without making.
They also count the variables that they make, for which all wait too: a new variable takes the chief's value.
"""

import itertools
from collections.abc import Collection, Sequence

import msgspec

from tfdist.errors import ConfigError

NAMES = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "barrier", "save")
_MOST_NAMED = 3
_LONGEST_ERROR = 120
_REMEDY = (
    "Make the same calls in the same order on all workers, and build and load the same models; for one "
    "alone, call tfdist.save(model, path) on all, and load the file after the launch"
)


class CallState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The progress of a task in its calls.

    Attributes:
        number: How many calls it has begun.
        name: The name of the last of them.
        inside: The number of the call that it is in; 0 if in none.
        inside_name: The name of that call.
        failed: The number of the last call that it left by an exception; 0 if none.
        failed_name: The name of that call.
        error: That exception.
        is_broken: Whether an exchange has failed in the call, or for the variable, that it is in.
        has_ended: Whether its script has ended, and not by an exception.
        made: How many variables it has begun to make.
        making: The name of the variable that it makes; "" if none.
    """

    number: int = 0
    name: str = ""
    inside: int = 0
    inside_name: str = ""
    failed: int = 0
    failed_name: str = ""
    error: str = ""
    is_broken: bool = False
    has_ended: bool = False
    made: int = 0
    making: str = ""

    def begun(self, name: str) -> "CallState":
        """Return the state of a task that has begun another call."""
        number = self.number + 1
        return msgspec.structs.replace(self, number=number, name=name, inside=number, inside_name=name)

    def left(self, outer: "CallState", error: BaseException | None = None) -> "CallState":
        """Return the state of a task that has left the call that it is in, for the one around it, if any."""
        before = {"inside": outer.inside, "inside_name": outer.inside_name, "is_broken": False}
        if error is None:
            return msgspec.structs.replace(self, **before)
        reason = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
        failed = {"failed": self.inside, "failed_name": self.inside_name, "error": reason}
        return msgspec.structs.replace(self, **before, **failed)

    @property
    def call(self) -> tuple[int, str]:
        """Return the number and the name of the call that it is in."""
        return self.inside, self.inside_name


def are_out_of_step(states: Sequence[CallState]) -> bool:
    """Return whether tasks are out of step for certain: one of them waits for what will not come."""
    inside = [state for state in states if state.inside]
    calls = {state.call for state in inside}
    if len(calls) > len({number for number, _ in calls}):
        return True
    if len({state.call for state in inside if state.is_broken}) > 1:
        return True
    ended_after = min((state.number for state in states if state.has_ended), default=None)
    if ended_after is not None and any(state.inside > ended_after for state in inside):
        return True
    made_by_ended = min((state.made for state in states if state.has_ended), default=None)
    if made_by_ended is not None and any(state.making and state.made > made_by_ended for state in states):
        return True
    return _are_apart(states, if_broken=True)


def have_parted(states: Sequence[CallState]) -> bool:
    """Return whether a task waits for what another seems not to do.

    It is in a call that another has left by an exception of its own; or it makes a variable, and another is
    in a later call. That is certain only after some time, in which the first may leave the call by the same
    exception, and the other may make the variable in its call.
    """
    return _are_apart(states, if_broken=False)


def _are_apart(states: Sequence[CallState], *, if_broken: bool) -> bool:
    """Return whether two tasks have parted; `if_broken`, whether an exchange of one has failed too."""
    return _has_one_left(states, if_broken) or _lacks_variable_in_later_call(states, if_broken)


def _has_one_left(states: Sequence[CallState], if_broken: bool) -> bool:
    """Return whether a task is in a call that another has left by an exception and has done more since."""
    left = [
        state
        for state in states
        if state.failed and state.failed != state.inside and (state.has_ended or state.inside)
    ]
    calls = {state.failed for state in left}
    broken_calls = {state.failed for state in left if state.is_broken or not if_broken}
    return any(state.inside in (calls if state.is_broken else broken_calls) for state in states)


def _lacks_variable_in_later_call(states: Sequence[CallState], if_broken: bool) -> bool:
    """Return whether a task makes a variable that another, in a later call, has not begun to make."""
    latest = latest_broken = 0  # calls of the tasks that have made fewer variables
    by_made = sorted(states, key=lambda state: state.made)
    for _, group in itertools.groupby(by_made, key=lambda state: state.made):
        alike = list(group)
        for state in alike:
            if state.making and state.number < (latest if state.is_broken else latest_broken):
                return True
        latest = max(latest, *(state.inside for state in alike))
        insides = (state.inside for state in alike if state.is_broken or not if_broken)
        latest_broken = max(latest_broken, *insides, 0)
    return False


def first_waiting(states: Sequence[CallState]) -> int | None:
    """Return the index of the first task that waits for one which is not there yet."""
    number = min((state.number for state in states if not state.has_ended), default=0)
    made = min((state.made for state in states if not state.has_ended), default=0)
    return next(
        (
            index
            for index, state in enumerate(states)
            if state.inside > number or (state.making and state.made > made)
        ),
        None,
    )


def late(states: Sequence[CallState], waiting: int) -> list[int]:
    """Return the indices of the tasks that have not begun the call or the variable that one task is in."""
    begun, made = states[waiting].inside, states[waiting].made if states[waiting].making else 0
    return [
        index
        for index, state in enumerate(states)
        if (state.number < begun or state.made < made) and not state.has_ended
    ]


def out_of_step(names: Sequence[str], states: Sequence[CallState]) -> ConfigError:
    """Return the error that says which call each task is in."""
    waited_for = {state.inside for state in states}
    return ConfigError("the workers are out of step", _told(names, states, waited_for), remedy=_REMEDY)


def waits_text(names: Sequence[str], states: Sequence[CallState], waiting: int, seconds: float) -> str:
    """Return for how long a task has waited in its call, and what each task does that it waits for."""
    behind = late(states, waiting)
    told = _told([names[index] for index in behind], [states[index] for index in behind], ())
    state = states[waiting]
    place = f"to make the variable {state.making}" if state.making else f"in its {_call(*state.call)}"
    return f"has waited {seconds:.0f} s {place}: {told}"


def _told(names: Sequence[str], states: Sequence[CallState], waited_for: Collection[int]) -> str:
    """Return what each task does, tasks that do the same together."""
    members: dict[str, list[str]] = {}
    for name, state in zip(names, states, strict=True):
        members.setdefault(_does(state, waited_for), []).append(name)
    return "; ".join(f"{_subject(same)} {text}" for text, same in members.items())


def _subject(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    if len(names) <= _MOST_NAMED:
        return f"each of {', '.join(names)}"
    return f"each of {', '.join(names[:_MOST_NAMED])} and {len(names) - _MOST_NAMED} more"


def _does(state: CallState, waited_for: Collection[int]) -> str:
    last = _call(state.number, state.name)
    if state.has_ended:
        text = (
            f"has ended its script after its {last}"
            if state.number
            else "has ended its script without a call"
        )
    elif state.making:
        text = f"makes the variable {state.making} of a model{f' after its {last}' if state.number else ''}"
    elif state.inside:
        text = f"is in its {_call(*state.call)}"
    else:
        text = f"is in code of its own after its {last}" if state.number else "has made no call"
    if state.failed and state.failed in waited_for and state.failed != state.inside:
        text += f", and has left its {_call(state.failed, state.failed_name)}, by {state.error}"
    return text


def _call(number: int, name: str) -> str:
    ending = "th" if 10 < number % 100 < 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending} call, {name}"

"""What tasks tell about their calls shows whether they are out of step, and who is late."""

import random

import msgspec
import pytest

from tfdist.coordination.calls_out_of_step import (
    CallState,
    are_out_of_step,
    first_waiting,
    have_parted,
    late,
    out_of_step,
    waits_text,
)

TWO = ["worker:0", "worker:1"]
ENDED = {"has_ended": True}


def inside(number, name, **others):
    return CallState(number, name, number, name, **others)


def after(number, name, **others):
    return CallState(number, name, **others)


def parted(name="evaluate"):
    """Return the state of a task that has left its first call by an exception, and is in its second."""
    failed = CallState().begun("fit").left(CallState(), ValueError("a bad\nfile"))
    return failed.begun(name)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (inside(3, "predict"), inside(3, "evaluate")),
        (inside(2, "predict"), after(1, "fit", **ENDED)),
        (inside(1, "fit"), CallState(has_ended=True)),
        (inside(3, "fit", is_broken=True), inside(4, "fit", is_broken=True)),
        (inside(1, "fit"), inside(2, "evaluate", is_broken=True, failed=1, failed_name="fit", error="")),
    ],
)
def test_one_that_waits_for_what_will_not_come_is_found(one, other):
    assert are_out_of_step([one, other])
    assert are_out_of_step([other, one])
    assert are_out_of_step([one, one, other])


@pytest.mark.parametrize(
    "states",
    [
        [CallState(), CallState()],
        [inside(3, "fit"), inside(3, "fit")],
        [inside(2, "evaluate"), inside(1, "fit")],  # it has still to return from there
        [inside(2, "evaluate"), after(1, "fit")],  # it is at work
        [after(2, "fit", **ENDED), inside(2, "fit")],  # it ends soon too
        [after(2, "fit", **ENDED), after(1, "fit", **ENDED)],  # as nobody waits
        [inside(2, "evaluate", is_broken=True), inside(1, "fit")],  # what is known of it may be old
    ],
)
def test_what_may_still_come_is_awaited(states):
    assert not are_out_of_step(states)
    assert not have_parted(states)


def test_one_in_a_call_that_another_has_left_by_an_exception_is_found():
    assert have_parted([inside(1, "fit"), parted()])
    assert have_parted([parted().left(CallState()).begun("fit"), inside(1, "fit")])
    assert not have_parted([inside(1, "fit"), parted().left(CallState())])  # it may call again
    assert not have_parted([parted(), parted()])


def test_one_that_makes_a_variable_which_no_other_will_make_is_found():
    outer = CallState(number=2, name="save", made=8)
    alone = msgspec.structs.replace(outer, made=9, making="kernel")
    ended, in_next = msgspec.structs.replace(outer, **ENDED), outer.begun("barrier")
    for states in ([alone, ended], [ended, alone]):
        assert are_out_of_step(states)
    for states in ([alone, in_next], [in_next, alone]):
        assert have_parted(states)
    assert not are_out_of_step([alone, in_next])  # its call may make the variable
    for broken in (alone, in_next):
        now = msgspec.structs.replace(broken, is_broken=True)
        assert are_out_of_step([now, in_next if broken is alone else alone])
    said = str(out_of_step(TWO, [alone, in_next]))
    assert (
        "worker:0 makes the variable kernel of a model after its 2nd call, save; worker:1 is in its 3" in said
    )


def test_a_variable_that_another_makes_later_is_awaited():
    making = CallState(made=3, making="bias")
    behind, in_fit = CallState(made=2), CallState(1, "fit", 1, "fit", made=3, making="bias")
    done, busy = CallState(made=5, has_ended=True), CallState(1, "fit", 1, "fit", made=2)
    for states in ([making, behind], [making, done], [in_fit, busy], [in_fit, behind], [making, making]):
        assert not are_out_of_step(states)
        assert not have_parted(states)
    assert not are_out_of_step(
        [msgspec.structs.replace(making, is_broken=True), behind]
    )  # for another reason
    assert late([making, behind, done], 0) == [1]
    assert first_waiting([behind, making]) == 1
    said = waits_text(TWO, [making, behind], 0, 30)
    assert said == "has waited 30 s to make the variable bias: worker:1 has made no call"


def test_a_callback_that_catches_the_exception_of_a_call_within_fit_is_found():
    outer = CallState().begun("fit")
    back = outer.begun("predict").left(outer, ValueError("no"))
    assert back.call == (1, "fit")
    assert have_parted([outer.begun("predict"), back])


def test_a_call_within_another_counts():
    outer = CallState().begun("fit")
    within = outer.begun("evaluate")
    assert (within.number, within.call) == (2, (2, "evaluate"))
    assert within.left(outer).call == (1, "fit")
    assert within.left(outer).left(CallState()) == CallState(2, "evaluate")


@pytest.mark.parametrize(
    ("states", "text"),
    [
        (
            [inside(3, "predict"), inside(3, "evaluate")],
            "worker:0 is in its 3rd call, predict; worker:1 is in its 3rd call, evaluate.",
        ),
        (
            [inside(2, "predict"), after(1, "fit", **ENDED)],
            "worker:0 is in its 2nd call, predict; worker:1 has ended its script after its 1st call, fit.",
        ),
        (
            [CallState(has_ended=True), inside(1, "fit")],
            "worker:0 has ended its script without a call; worker:1 is in its 1st call, fit.",
        ),
        (
            [inside(1, "fit"), parted()],
            "worker:0 is in its 1st call, fit; worker:1 is in its 2nd call, evaluate, "
            "and has left its 1st call, fit, by ValueError: a bad\\nfile.",
        ),
    ],
)
def test_the_line_names_the_tasks_and_what_each_was_calling(states, text):
    line = str(out_of_step(TWO, states))
    assert line.startswith(f"the workers are out of step: {text} Make the same calls in the same order")
    assert "\n" not in line
    assert out_of_step(TWO, states).exit_code == 2


def test_many_tasks_that_do_the_same_are_one_part_of_the_line():
    names = [f"worker:{index}" for index in range(64)]
    states = [inside(12, "predict"), *[inside(12, "evaluate")] * 63]
    assert out_of_step(names, states).problem == (
        "worker:0 is in its 12th call, predict; "
        "each of worker:1, worker:2, worker:3 and 60 more is in its 12th call, evaluate"
    )


def test_who_is_late_is_named_with_what_it_has_done():
    states = [after(2, "fit"), inside(3, "predict"), CallState(), inside(2, "fit")]
    names = [f"worker:{index}" for index in range(4)]
    assert late(states, 1) == [0, 2, 3]
    assert late(states, 0) == []
    assert first_waiting(states) == 1
    assert first_waiting([after(2, "fit"), inside(2, "fit")]) is None
    assert first_waiting([inside(3, "fit"), after(2, "fit", **ENDED)]) is None
    assert waits_text(names, states, 1, 31.4) == (
        "has waited 31 s in its 3rd call, predict: worker:0 is in code of its own after its 2nd call, fit; "
        "worker:2 has made no call; worker:3 is in its 2nd call, fit"
    )


class Counted:
    """A state that counts how often something reads from it."""

    reads = 0

    def __init__(self, state):
        self._state = state

    def __getattr__(self, name):
        Counted.reads += 1
        return getattr(self._state, name)


def reads(tasks):
    """Return how often the states of so many tasks are read, of which each has made another number of variables."""
    states = [Counted(inside(1, "fit", made=index, making="kernel")) for index in range(tasks)]
    Counted.reads = 0
    assert not are_out_of_step(states)
    assert not have_parted(states)
    assert first_waiting(states) == 1
    assert first_waiting([Counted(inside(1, "fit"))] * tasks) is None
    return Counted.reads


def test_the_work_is_linear_in_the_tasks():
    assert reads(800) <= 8.1 * reads(100)


def any_state(rng):
    has_ended, number, made = rng.random() < 0.15, rng.randint(0, 3), rng.randint(0, 2)
    in_call = 0 if has_ended else rng.randint(0, number)
    return CallState(
        number,
        "fit",
        in_call,
        "fit" if in_call else "",
        failed=rng.randint(0, number) if rng.random() < 0.3 else 0,
        is_broken=bool(in_call) and rng.random() < 0.2,
        has_ended=has_ended,
        made=made,
        making="kernel" if made and not has_ended and rng.random() < 0.3 else "",
    )


def are_apart(state, other):
    """Return whether two tasks have parted, as the documentation says it."""
    has_left = other.failed and other.failed != other.inside and (other.has_ended or other.inside)
    lacks_variable = state.making and other.made < state.made and other.inside > state.number
    return bool((has_left and state.inside == other.failed) or lacks_variable)


def test_all_tasks_are_compared_as_each_two_of_them():
    rng, found = random.Random(20171110), [0, 0, 0]
    for _ in range(3000):
        states = [any_state(rng) for _ in range(rng.randint(1, 5))]
        pairs = [(one, other) for one in states for other in states]
        waiting = [index for index in range(len(states)) if late(states, index)]
        assert have_parted(states) == any(are_apart(*pair) for pair in pairs)
        assert are_out_of_step(states) == any(are_out_of_step(pair) for pair in pairs)
        assert first_waiting(states) == (waiting[0] if waiting else None)
        found = [found[0] + have_parted(states), found[1] + are_out_of_step(states), found[2] + bool(waiting)]
    assert min(found) > 100

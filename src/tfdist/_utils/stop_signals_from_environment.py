"""Name the signals that ask this process to save its work and end."""

import os
import signal

from tfdist.errors import ConfigError, shown

VARIABLE = "TFDIST_STOP_SIGNALS"  # such as USR1,USR2: besides SIGTERM
_OF_SLURM = "USR1,USR2"  # with which many job scripts let Slurm announce the time limit


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return SIGTERM, and those of TFDIST_STOP_SIGNALS that the program does not handle itself.

    Under Slurm, SIGUSR1 and SIGUSR2 are the default.

    Raises:
        ConfigError: TFDIST_STOP_SIGNALS names no signal.
    """
    numbers = [signal.SIGTERM]
    for name in filter(None, variable_for_tasks().split(",")):
        try:
            number = signal.Signals["SIG" + name.strip().upper().removeprefix("SIG")]
        except KeyError:
            expected = "names of signals, such as USR1,USR2"
            raise ConfigError(VARIABLE, expected=expected, received=shown(name)) from None
        if signal.getsignal(number) is signal.SIG_DFL and number not in numbers:
            numbers.append(number)
    return tuple(numbers)


def variable_for_tasks() -> str:
    """Return the value of TFDIST_STOP_SIGNALS or its default, for tasks that see no variables of Slurm."""
    return os.environ.get(VARIABLE, _OF_SLURM if os.environ.get("SLURM_JOB_ID") else "")

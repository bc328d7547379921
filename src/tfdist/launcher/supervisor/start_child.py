"""Start a child of the supervisor: a task, or the fork server that tasks are forked from."""

import os
import signal
from collections.abc import Iterable, Mapping, Sequence

from .plan import as_bytes
from .process_tree import die_with_parent

# The signals that may tell a task to end; Slurm sends them to all processes of a job.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# The signals of a terminal, which systemd may send to all processes of a session. The supervisor, which gets
# them too, sends SIGTERM to the tasks, so that they save.
SIGNALS_OF_TERMINALS = (signal.SIGINT, signal.SIGHUP)
FORK = "fork: "  # begins the error text if there is no room for a process, which may pass


def start(
    variables: Mapping[str, str],
    cores: Sequence[int],
    command: Sequence[str],
    output: int,
    keeps: Iterable[int],
) -> tuple[int, str]:
    """Start a command that prints to a pipe; return its pid, and an error text if it cannot be started."""
    error_reader, error_writer = os.pipe()
    supervisor = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:  # the user's limit of processes is reached
        os.close(error_reader)
        os.close(error_writer)
        return 0, f"{FORK}{error.strerror}"
    if pid == 0:
        try:
            become(cores, supervisor, output)
            for fd in keeps:
                os.set_inheritable(fd, True)
            environment = {as_bytes(name): as_bytes(value) for name, value in variables.items()}
            os.execvpe(as_bytes(command[0]), [as_bytes(word) for word in command], environment)  # noqa: S606
        except (OSError, ValueError) as error:
            os.write(error_writer, str(getattr(error, "strerror", None) or error).encode())
        finally:
            os._exit(127)
    os.close(error_writer)
    with open(error_reader, "rb") as stream:  # ends when exec closes the writing end
        reason = stream.read().decode()
    if reason:
        os.waitpid(pid, 0)
    return pid, reason


def become(cores: Sequence[int], supervisor: int, output: int) -> None:
    """Start a session in a forked child of the supervisor, and make it end with the supervisor."""
    os.setsid()
    die_with_parent(supervisor)
    signal.set_wakeup_fd(-1)
    # Python ignores the first two; a shell's & ignores the third.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    for number in SIGNALS_OF_TERMINALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if cores:
        os.sched_setaffinity(0, cores)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(output, 1)
    os.dup2(output, 2)

"""Read the variables that Slurm's srun sets, and expand Slurm's node lists without asking Slurm."""

import re

from tfdist.cluster.roles_and_task_counts import TaskCounts
from tfdist.cluster.schedulers.scheduler import Claim, Scheduler, by_rank
from tfdist.errors import ConfigError, shown

# Slurm's largest sites have about ten thousand nodes. A longer list is a mistake and could fill the memory.
MOST_HOSTS = 65_536
_FIRST_PORT, _PORTS = 10_000, 10_000
_PORTS_APART = 7_919  # a prime number, so that 10,000 consecutive jobs begin at different ports


class Slurm(Scheduler):
    """The SLURM_* variables of a job step, which srun sets.

    Ports start at `port`. The default port comes from the job's number, so that jobs on one node use
    different ports: those of 100 jobs with consecutive numbers are at least 56 ports apart.
    """

    name = "Slurm's SLURM_STEP_NODELIST"

    @property
    def present(self) -> bool:
        """Return whether srun started this process."""
        # A batch script outside of srun is one process, whatever the size of the allocation. So is a shell in
        # which a user types, as `srun --pty bash` starts it: a step of one task with a terminal.
        if self._environ.get("SLURM_PTY_PORT") and self._environ.get("SLURM_STEP_NUM_TASKS") == "1":
            return False
        return all(self._environ.get(name) for name in ("SLURM_STEP_NODELIST", "SLURM_PROCID"))

    def claim(self, counts: TaskCounts | None = None, port: int | None = None) -> Claim:
        """Return a task for each rank of the job step."""
        hosts = expand_hosts(self._environ["SLURM_STEP_NODELIST"], "SLURM_STEP_NODELIST")
        per_host = self._tasks_per_host(len(hosts))
        rank = self._number("SLURM_PROCID")
        total = sum(per_host)
        stated = self._number("SLURM_STEP_NUM_TASKS") if "SLURM_STEP_NUM_TASKS" in self._environ else total
        if stated != total:
            problem = f"says {stated}, but SLURM_STEP_TASKS_PER_NODE says {total} over {len(hosts)} nodes"
            raise ConfigError("SLURM_STEP_NUM_TASKS", problem)
        first = port or _FIRST_PORT + self._number("SLURM_JOB_ID", default=0) * _PORTS_APART % _PORTS
        tasks = dict(zip(hosts, per_host, strict=True))
        ranked = [
            f"{host}:{first + i}"
            for group in self._groups(hosts)
            for host, i in self._distributed([(host, i) for host in group for i in range(tasks[host])])
        ]
        alone = "`env -u SLURM_PROCID` before the command starts all of them here"
        remedy = alone if len(ranked) == 1 else ""
        return by_rank(ranked, rank, counts, "SLURM_STEP_NODELIST", "SLURM_PROCID", remedy)

    def _groups(self, hosts: list[str]) -> list[list[str]]:
        """Return the hosts of the step, by component of the job, as Slurm numbers the ranks.

        A heterogeneous job has several components. SLURM_STEP_NODELIST sorts the hosts of all of them, so
        that the first host need not have the first rank.
        """
        stem = "SLURM_JOB_NODELIST"
        found = [re.fullmatch(rf"{stem}_(?:HET|PACK)_GROUP_([0-9]{{1,5}})", name) for name in self._environ]
        names = {int(match[1]): match[0] for match in found if match}  # both names have the same hosts
        if not names and self._environ.get("SLURM_HET_SIZE", "1") in ("", "0", "1"):
            return [hosts]
        in_step = set(hosts)
        groups = [
            [host for host in expand_hosts(self._environ[name], name) if host in in_step]
            for _, name in sorted(names.items())
        ]
        listed = [host for group in groups for host in group]
        if sorted(listed) != sorted(hosts):
            raise ConfigError(
                "SLURM_HET_SIZE",
                f"the hosts of {stem}_HET_GROUP_0 and so on must be those of SLURM_STEP_NODELIST, each once",
                remedy="Give each component of the job nodes of its own, or state the cluster by TF_CONFIG",
            )
        return groups

    def _tasks_per_host(self, hosts: int) -> list[int]:
        name = "SLURM_STEP_TASKS_PER_NODE"
        counts: list[int] = []
        for part in self._required(name, "SLURM_STEP_NODELIST").split(","):
            match = re.fullmatch(r"([0-9]{1,5})(?:\(x([0-9]{1,5})\))?", part.strip())
            if not match:
                raise ConfigError(name, expected="counts such as 2(x3),1", received=shown(part))
            counts += [int(match[1])] * int(match[2] or 1)
            if sum(counts) > MOST_HOSTS:
                raise ConfigError(name, expected=f"at most {MOST_HOSTS} tasks", received=shown(part))
        if len(counts) != hosts:
            raise ConfigError(name, f"counts {len(counts)} nodes, but SLURM_STEP_NODELIST names {hosts}")
        return counts

    def _distributed(self, slots: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return the slots in the order of their ranks, which srun's --distribution decides."""
        order = self._environ.get("SLURM_DISTRIBUTION", "block").lower().split(":")[0].split(",")[0]
        if order == "cyclic":
            return sorted(slots, key=lambda slot: slot[1])
        if order in ("block", "", "*"):
            return slots
        expected = "block or cyclic"
        remedy = "Use `srun --distribution=block`"
        raise ConfigError("SLURM_DISTRIBUTION", expected=expected, received=shown(order), remedy=remedy)


def expand_hosts(text: str, name: str) -> list[str]:
    """Expand a Slurm node list: `gpu[001-003,7],login` gives gpu001, gpu002, gpu003, gpu7, login.

    >>> expand_hosts("a[1-2]b[0-1]", "SLURM_STEP_NODELIST")
    ['a1b0', 'a1b1', 'a2b0', 'a2b1']
    """
    part = r"[^\[\],\s]*(?:\[[^\[\]\s]*\][^\[\],\s]*)*"
    if not re.fullmatch(rf"{part}(?:,{part})*", text):
        raise ConfigError(name, expected="a list such as gpu[001-004,7],login", received=shown(text))
    hosts: list[str] = []
    for expression in re.findall(rf"(?:^|(?<=,))(?:{part})", re.sub(r"\s", "", text)):
        hosts += _expand(expression, name, MOST_HOSTS - len(hosts))
    return hosts


def _expand(expression: str, name: str, most: int) -> list[str]:
    names = [""]
    for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", expression):
        numbers = [literal] if literal else _expand_ranges(ranges, name, most)
        if len(names) * len(numbers) > most:
            raise ConfigError(name, expected=f"at most {MOST_HOSTS} hosts", received="more")
        names = [stem + number for stem in names for number in numbers]
    if names == [""]:
        raise ConfigError(name, expected="a name between two commas", received="none")
    return names


def _expand_ranges(ranges: str, name: str, most: int) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if not match:
            raise ConfigError(name, expected="numbers such as [001-004,7]", received=shown(f"[{ranges}]"))
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or len(numbers) + last - first >= most:
            expected = f"a rising range of at most {MOST_HOSTS} hosts"
            raise ConfigError(name, expected=expected, received=shown(part))
        numbers += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return numbers

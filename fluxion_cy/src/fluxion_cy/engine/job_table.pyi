"""The table of jobs (compiled)."""

from typing import Any

NO_JOBID: int

def check_jobid(jobid: object) -> int: ...

class Job:
    """A job that holds, or held, resources."""

    slot: int
    at: int
    mode: Any
    automatic: bool
    request: Any

    def __init__(self, slot: int, at: int, mode: Any, automatic: bool = False, request: Any = None) -> None: ...

class JobTable:
    """Jobs by id."""

    jobs: dict[int, Job]
    next_jobid: int
    latest: int

    def __init__(self) -> None: ...
    def choose(self, jobid: object) -> tuple[int, bool]: ...
    def advance(self, jobid: int, automatic: bool) -> None: ...
    def held(self, jobid: object) -> Job: ...
    def known(self, jobid: object) -> Job: ...
    def forget(self, jobid: int) -> None: ...
    def copy(self) -> JobTable: ...

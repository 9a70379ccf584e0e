"""Moves reservations forward when resources become free early (`replan=True`)."""

from dataclasses import dataclass
from typing import Any

from fluxion_cy.base.arguments import entries_of
from fluxion_cy.embedded.search import Compiled, Compiler, Question
from fluxion_cy.engine.engine import Engine
from fluxion_cy.engine.job_table import Job, JobTable
from fluxion_cy.engine.jobs import Mode
from fluxion_cy.errors import FluxionError
from fluxion_cy.jobspec.reader import FOREVER


@dataclass(frozen=True, slots=True)
class Request:
    """The request of a reservation, for later searches."""

    compiled: Compiled
    candidates: list[Any] | None
    prefer: list[Any] | None


def copied(value: Any, what: str) -> list[Any] | None:
    """A list, which later changes to the caller's array do not affect."""
    return None if value is None else entries_of(value, what)


def replan(engine: Engine, table: JobTable, compiler: Compiler, now: int) -> list[int]:
    """Moves reservations forward, the one that starts first before the others, until none can start earlier.

    No reservation moves back, and one that has begun stays. One that can start at `now` becomes an allocation. Returns
    the job ids that moved.
    """
    moved: dict[int, None] = {}
    again = True
    while again:
        again = False
        waiting = sorted((job.at, jobid) for jobid, job in table.jobs.items() if _waits(job, now))
        for _, jobid in waiting:
            if _advance(engine, table.jobs[jobid], compiler, now):
                moved[jobid] = None
                again = True
    return list(moved)


def _waits(job: Job, now: int) -> bool:
    return job.slot >= 0 and job.mode is Mode.RESERVED and job.at > now and job.request is not None


def _advance(engine: Engine, job: Job, compiler: Compiler, now: int) -> bool:
    """Moves a reservation to an earlier start; returns whether there was one."""
    engine.lift(job.slot)
    start, duration = _earlier(engine, job, compiler, now)
    if start is None:
        engine.lower(job.slot)
        return False
    engine.discard(job.slot)
    job.slot = engine.commit(start, min(start + duration, now + FOREVER), now)
    job.at, job.mode = start, Mode.RESERVED if start > now else Mode.ALLOCATED
    return True


def _earlier(engine: Engine, job: Job, compiler: Compiler, now: int) -> tuple[int | None, int]:
    """A start before the present one, or None, and the duration. The engine has the match."""
    request: Request = job.request
    try:
        question = Question(engine, compiler.again(request.compiled), request.candidates, request.prefer)
        start = now if question.now(now) else question.later(now, job.at)
    except FluxionError:  # the graph no longer has a requested type: the job keeps its resources
        return None, 0
    return start, question.duration

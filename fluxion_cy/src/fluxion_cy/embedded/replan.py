"""Reservations moved forward when something ends early (`replan=True`)."""

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
    """What a reservation asked for, kept to ask again."""

    compiled: Compiled
    candidates: list[Any] | None
    prefer: list[Any] | None


def copied(value: Any, what: str) -> list[Any] | None:
    """A list that later changes of the caller's array do not reach."""
    return None if value is None else entries_of(value, what)


def replan(engine: Engine, table: JobTable, compiler: Compiler, now: int) -> list[int]:
    """Moves reservations forward, the one that starts first before the others, until none can start earlier.

    None is ever moved back, and one that has begun stays. One that can start at `now` becomes an allocation. Answers
    the job ids that were moved.
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
    """Whether an earlier start was found, and taken."""
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
    """(a start before the present one, or None; duration); the match lies in the engine."""
    request: Request = job.request
    try:
        question = Question(engine, compiler.again(request.compiled), request.candidates, request.prefer)
        start = now if question.now(now) else question.later(now, job.at)
    except FluxionError:  # the graph has lost a type that it asks for: it keeps what it has
        return None, 0
    return start, question.duration

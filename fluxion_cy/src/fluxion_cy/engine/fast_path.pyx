# cython: language_level=3
"""The fast path of `allocate`, in compiled code, which serves nearly all of a scheduler's jobs.

It requires that the jobspec is a cached text, that the call has no candidates or preferences, that the request matches
now, and that R has no graph. It has the same effect as the steps of `Matcher`, which handles all other calls.
"""
from cpython.object cimport PyObject_GenericSetAttr
from libc.stdint cimport int32_t, int64_t

from os import register_at_fork
from threading import RLock
from time import perf_counter
from weakref import WeakSet

from fluxion_cy.engine.match_plan cimport MatchPlan
from fluxion_cy.engine.job_table cimport Job, JobTable
from fluxion_cy.engine.engine cimport IN_VAIN, Engine

from fluxion_cy.base.arguments import MAX_SECOND
from fluxion_cy.errors import NotSupported
from fluxion_cy.engine.jobs import Allocation, MatchOp, Mode
from fluxion_cy.jobspec.reader import FOREVER

cdef object ALLOCATE = MatchOp.ALLOCATE, ALLOCATED = Mode.ALLOCATED
cdef object _turns = WeakSet()
cdef int64_t LATEST = MAX_SECOND, LONGEST = FOREVER


cdef allocation(number, at, double overhead, R):
    """Creates an `Allocation` without `__init__`, which is slow because the class is frozen."""
    found = Allocation.__new__(Allocation)
    PyObject_GenericSetAttr(found, "jobid", number)
    PyObject_GenericSetAttr(found, "at", at)
    PyObject_GenericSetAttr(found, "reserved", False)
    PyObject_GenericSetAttr(found, "overhead", overhead)
    PyObject_GenericSetAttr(found, "R", R)
    return found


cdef class Turn:
    """The lock of one matcher, which runs one call at a time.

    Other threads wait. A nested call in the same thread (from a signal handler, a finaliser or an argument's own code)
    raises NotSupported, because the engine still needs the result of the outer call.

    If another thread forks the process during a call, no thread of the child completes the call, and the child cannot use
    this matcher.
    """

    cdef readonly object lock
    cdef bint taken
    cdef bint torn
    cdef object __weakref__

    def __init__(self):
        self.lock, self.taken, self.torn = RLock(), False, False
        _turns.add(self)

    cdef enter(self, str name):
        self.lock.acquire()
        if self.taken:
            self.lock.release()
            if self.torn:
                raise NotSupported(
                    f"{name}: the process was forked while another thread was in a call to this matcher; fork earlier, or "
                    "create a new matcher")
            raise NotSupported(f"{name}: another call to this matcher is in flight in the same thread")
        self.taken = True

    cdef forked(self):
        """Marks the matcher as unusable in the child of a fork if another thread had the lock."""
        if self.lock.acquire(blocking=False):
            self.lock.release()
        else:
            self.lock, self.torn = RLock(), self.taken

    cdef leave(self):
        self.taken = False
        self.lock.release()

    def run(self, str name, function, tuple arguments):
        """Calls a function while it has the lock. `name` is used in the message about a nested call."""
        self.enter(name)
        try:
            return function(*arguments)
        finally:
            self.leave()

    def call(self, method, matcher, tuple arguments, dict options):
        """Calls a method of the matcher while it has the lock."""
        self.enter(method.__name__.strip("_"))
        try:
            return method(matcher, *arguments, **options)
        finally:
            self.leave()


def _forked():
    for turn in list(_turns):
        (<Turn> turn).forked()


register_at_fork(after_in_child=_forked)


def allocate(matcher, Turn turn not None, Engine engine not None, JobTable table not None, dict known not None,
             jobspec, jobid, now):
    """`Matcher.allocate` without candidates or preferences: by the fast path, or else by the general one."""
    turn.enter("allocate")
    try:
        found = _allocate(engine, table, known, jobspec, jobid, now)
        if type(found) is bool:
            return matcher._place(ALLOCATE, jobspec, jobid, now, None, None, tried=found)
        return found
    finally:
        turn.leave()


cdef _allocate(Engine engine, JobTable table, dict known, jobspec, jobid, now):
    """Allocates, and returns the `Allocation`.

    Returns False if the fast path does not apply, and True if the request has no match. Then nothing has changed.
    """
    cdef int32_t slot
    cdef int64_t at
    cdef MatchPlan plan
    cdef double began = perf_counter()
    if type(jobspec) is not str or type(now) is not int or not 0 <= now <= LATEST:
        return False
    compiled = known.get(jobspec)
    if compiled is None or compiled.plan is None:
        return False
    plan, at = compiled.plan, now
    if plan.tables != engine.tables():
        return False
    table.latest = max(table.latest, at)
    number, automatic = (table._next(), True) if jobid is None else table.choose(jobid)
    slot = engine.place_now(plan.form, plan.terms, at, plan.duration, LONGEST)
    if slot < 0:
        return slot == IN_VAIN
    table.advance(number, automatic)
    try:
        R = {"version": 1, "execution": engine.execution(at, at + min(plan.duration, LONGEST))}
        found = allocation(number, now, perf_counter() - began, R)
        table.jobs[number] = Job(slot, at, ALLOCATED, automatic)
    except BaseException:
        engine.unweigh(slot)
        engine.release(slot)
        raise
    return found

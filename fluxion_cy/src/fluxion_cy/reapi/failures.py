"""Translates failed calls of the library to the errors that the embedded engine raises."""

import errno as _errno
from collections.abc import Callable
from typing import TypeVar

from fluxion_cy.errors import Busy, FluxionError, InvalidGraph, InvalidJobspec, NoSuchJob, NotSupported, Unsatisfiable
from fluxion_cy.reapi.context import Failure

T = TypeVar("T")


def translated(call: Callable[[], T], refusal: Callable[[Failure], FluxionError]) -> T:
    """The result of the call. If the call fails, raises the package's error for the failure."""
    try:
        return call()
    except Failure as failure:
        raise refusal(failure) from None


def _other(failure: Failure, what: str) -> FluxionError:
    """The errors of any call: out of memory, or a missing function."""
    if failure.errno in (_errno.ENOSYS, _errno.ENOTSUP):
        return NotSupported(f"{what}: the library does not support this{_because(failure)}")
    return FluxionError(f"{what}: the library failed{_because(failure)}", failure.errno or _errno.EINVAL)


def _because(failure: Failure) -> str:
    return f" ({failure.text[:1000]})" if failure.text else ""


def graph_refused(failure: Failure) -> FluxionError:
    """The error of a constructor."""
    if failure.errno == _errno.ENOMEM:
        return _other(failure, "graph")
    return InvalidGraph(f"graph: the library rejects it{_because(failure)}")


def match_refused(failure: Failure) -> FluxionError:
    """The error of a match, or of `satisfy`."""
    because = _because(failure)
    if failure.errno == _errno.EBUSY:
        return Busy(f"jobspec: no match now{because}")
    if failure.errno == _errno.ENODEV:
        return Unsatisfiable(f"jobspec: no match even if nothing were allocated and every vertex were up{because}")
    if failure.errno == 0:
        return InvalidJobspec(f"jobspec: the library finds no match and gives no reason{because}; rewrite the jobspec")
    if failure.errno == _errno.EINVAL:
        return InvalidJobspec(f"jobspec: the library rejects it{because}")
    return _other(failure, "jobspec")


def job_refused(failure: Failure) -> FluxionError:
    """The error of a call that names a job."""
    if failure.errno == _errno.ENOENT:
        return NoSuchJob(f"jobid: no such job{_because(failure)}")
    return _other(failure, "jobid")


def resources_refused(failure: Failure) -> FluxionError:
    """The error of a call that names vertices, ranks or resources."""
    if failure.errno in (0, _errno.EINVAL, _errno.ENOENT, _errno.EPROTO):
        errno = failure.errno or _errno.EINVAL
        return InvalidGraph(f"graph: the library rejects it{_because(failure)}", errno)
    return _other(failure, "graph")


def holding_refused(failure: Failure) -> FluxionError:
    """The error of `update_allocate`, whose resources are in the graph."""
    if failure.errno in (0, _errno.EINVAL, _errno.EBUSY):
        return Busy(f"R: a job already holds part of it{_because(failure)}", _errno.EINVAL)
    return resources_refused(failure)


def criteria_refused(failure: Failure) -> FluxionError:
    """The error of `find`."""
    if failure.errno in (0, _errno.EINVAL):
        return InvalidJobspec(f"criteria: the library rejects them{_because(failure)}")
    return _other(failure, "criteria")

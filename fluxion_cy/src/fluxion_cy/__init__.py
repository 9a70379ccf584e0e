"""Fluxion's resource graph matcher for Python: an embedded engine that needs no Flux."""

from fluxion_cy.engine.job_table import NO_JOBID
from fluxion_cy.engine.jobs import Allocation, JobInfo
from fluxion_cy.errors import (
    Busy,
    FluxionError,
    InvalidGraph,
    InvalidJobspec,
    JobExists,
    NoSuchJob,
    NotSupported,
    Unsatisfiable,
)
from fluxion_cy.matcher import Matcher

__all__ = [
    "NO_JOBID",
    "Allocation",
    "Busy",
    "FluxionError",
    "InvalidGraph",
    "InvalidJobspec",
    "JobExists",
    "JobInfo",
    "Matcher",
    "NoSuchJob",
    "NotSupported",
    "Unsatisfiable",
]

"""Check for the packages of an optional feature before it imports them. Public, as `sdk.extras`."""

from __future__ import annotations

import shlex
from importlib.util import find_spec

from session_scheduler.errors import InputError


def require(feature: str, *modules: str, requirement: str) -> None:
    """Check that the modules are installed. Imports only their parent packages.

    `requirement` is what pip installs: `fluence-scheduler[webhook]`. Raises InputError, in one line.
    """
    missing = [module for module in modules if not _installed(module)]
    if missing:
        raise InputError(
            f"{feature} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed; "
            f"run pip install {shlex.quote(requirement)}"
        )


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False

"""A feature whose packages are missing says in one line which command installs them."""

from __future__ import annotations

import pytest

from session_scheduler.errors import InputError
from session_scheduler.sdk.extras import require


def message(*modules: str) -> str:
    with pytest.raises(InputError) as caught:
        require("the webhook", *modules, requirement="fluence-scheduler[webhook]")
    return str(caught.value)


def test_what_is_installed_is_not_imported_and_no_error() -> None:
    require("the tests", "this", "pytest", "xml.dom", requirement="pytest")


@pytest.mark.parametrize("module", ["absent_module", "absent_package.module", "pytest.absent_module"])
def test_a_missing_module_is_named_with_the_command_that_installs_it(module: str) -> None:
    command = "pip install 'fluence-scheduler[webhook]'"
    assert message("pytest", module) == f"the webhook needs {module}, which is not installed; run {command}"


def test_several_missing_modules_are_all_named() -> None:
    assert message("absent_one", "absent_two").startswith(
        "the webhook needs absent_one and absent_two, which are not installed; run pip install "
    )

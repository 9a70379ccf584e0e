"""A scope that is declared too narrow is found by comparing the three evaluations."""

from __future__ import annotations

import pytest

from session_scheduler import Scope, hookimpl
from session_scheduler.testing import InvariantError, check_evaluations


class Few:
    """No more than two pods go to a node."""

    name = "few"

    def __init__(self, scope: Scope) -> None:
        self.filter_scope = scope

    @hookimpl
    def filter(self, nodes, mask):
        mask &= nodes.used("pods") < 2


def scenario(scope):
    return lambda cluster: cluster.use(Few(scope)).nodes(2).pods(5).schedule()


def test_a_scope_that_is_too_narrow_is_told_with_the_pods_that_it_moves():
    with pytest.raises(InvariantError, match="a declared scope is too narrow:\npod default/p-") as reported:
        check_evaluations(scenario(Scope.STATIC))
    assert "naive None" in str(reported.value)


@pytest.mark.parametrize("scope", [Scope.NODE, Scope.ANY])
def test_a_scope_that_is_true_or_wider_passes(scope):
    check_evaluations(scenario(scope))

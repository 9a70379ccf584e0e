"""What is remembered of jobspecs that were asked before: bounded by number and by weight."""

import json
from copy import deepcopy
from typing import Any

import pytest

from fluxion_cy import Matcher
from fluxion_cy.embedded import search
from fluxion_cy.embedded.search import Compiler
from fluxion_cy.jobspec import reader

from ..graphs import machine, slot, spec, want

CORE = want("core", 1)
SMALL = spec(slot(1, CORE))


@pytest.fixture
def compiler() -> Compiler:
    return Matcher(machine())._compile


def test_an_equal_jobspec_is_compiled_once(compiler: Compiler) -> None:
    assert compiler(SMALL) is compiler(SMALL)


def test_long_lists_of_hosts_push_out_what_was_asked_before(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_MOST_BYTES", 1 << 20)
    small = compiler(SMALL)
    for second in range(1, 6):  # 5,000 hosts of some 65 bytes each
        compiler(spec(slot(1, CORE), duration=second, constraints={"hostlist": ["a[0-4999]"]}))
        assert compiler._weight <= 1 << 20
    assert len(compiler.known) == 3
    assert compiler(SMALL) is not small


def test_what_alone_is_too_heavy_is_not_kept_and_pushes_nothing_out(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_MOST_BYTES", 1 << 16)
    small = compiler(SMALL)
    compiler(spec(slot(1, CORE), constraints={"hostlist": ["a[0-4999]"]}))
    compiler(json.dumps(SMALL) + " " * (1 << 16))  # its text is what would be kept
    assert compiler(SMALL) is small
    assert len(compiler.known) == 1


def test_the_weight_is_that_of_what_is_kept(compiler: Compiler) -> None:
    for second in range(1, 300):
        compiler(spec(slot(1, CORE), duration=second))
    assert len(compiler.known) == len(compiler._weights) == 256
    assert compiler._weight == sum(compiler._weights.values())


def test_a_jobspec_that_is_changed_while_it_is_read_counts_as_it_was(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = deepcopy(SMALL)

    def late(jobspec: Any) -> Any:
        asked["resources"][0]["count"] = 2  # as another thread could
        return reader.read(jobspec)

    monkeypatch.setattr(search, "read", late)
    assert compiler(asked).spec.resources[0].low == 1
    assert compiler(SMALL).spec.resources[0].low == 1

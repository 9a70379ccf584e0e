"""How the library's failures, and its absence, are given."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fluxion_cy import (
    Busy,
    FluxionError,
    InvalidGraph,
    InvalidJobspec,
    Matcher,
    NoSuchJob,
    NotSupported,
    Unsatisfiable,
)
from fluxion_cy.reapi import library

from ..graphs import machine, slot, spec, want
from .conftest import Fake, build

ASK = spec(slot(1, want("core", 1)))
CORE = {"type": "core", "rank": 0, "exclusive": True, "paths": {"containment": "/cluster0/node0/core0"}}
R = {"graph": {"nodes": [{"metadata": CORE}]}}


@pytest.fixture(autouse=True)
def nothing_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_opened", {})


@pytest.mark.parametrize(
    ("code", "kind", "given"),
    [
        (errno.EBUSY, Busy, errno.EBUSY),
        (errno.ENODEV, Unsatisfiable, errno.ENODEV),
        (errno.EINVAL, InvalidJobspec, errno.EINVAL),
        (0, InvalidJobspec, errno.EINVAL),
        (errno.ENOMEM, FluxionError, errno.ENOMEM),
        (errno.ENOSYS, NotSupported, errno.ENOTSUP),
    ],
)
def test_a_failed_match_is_the_error_of_its_errno(fake: Fake, code: int, kind: type[FluxionError], given: int) -> None:
    matcher = fake.matcher(machine())
    fake.fail("match_with_jobid", errno=code, text="match_allocate: ERROR: \n   traverser\n")
    with pytest.raises(FluxionError) as caught:
        matcher.allocate(ASK)
    assert type(caught.value) is kind
    assert caught.value.errno == given
    assert "\n" not in str(caught.value)
    assert code == 0 or "match_allocate: ERROR: traverser" in str(caught.value)


def test_an_error_text_is_told_once(fake: Fake) -> None:
    matcher, other = fake.matcher(machine()), fake.matcher(machine())
    fake.fail("match_with_jobid", errno=errno.EBUSY, text="first")
    with pytest.raises(Busy, match="first"):
        matcher.allocate(ASK)
    fake.controls.fake_text(b"second")
    with pytest.raises(Busy, match="second") as caught:
        other.allocate(ASK)
    assert "first" not in str(caught.value)


def test_a_text_that_is_not_utf_8_is_told_all_the_same(fake: Fake) -> None:
    matcher = fake.matcher(machine())
    fake.fail("match_with_jobid", errno=errno.EBUSY)
    fake.controls.fake_text(b"caf\xe9")
    with pytest.raises(Busy, match="caf"):
        matcher.allocate(ASK)


@pytest.mark.parametrize(
    ("function", "code", "kind", "given", "call"),
    [
        ("cancel", errno.ENOENT, NoSuchJob, errno.ENOENT, lambda m: m.cancel(1)),
        ("cancel", errno.EINVAL, FluxionError, errno.EINVAL, lambda m: m.cancel(1)),
        ("update_allocate", errno.EINVAL, Busy, errno.EINVAL, lambda m: m.update_allocate(9, R)),
        ("update_allocate", errno.ENOENT, InvalidGraph, errno.ENOENT, lambda m: m.update_allocate(9, R)),
        ("find", errno.EINVAL, InvalidJobspec, errno.EINVAL, lambda m: m.find("status=up")),
        ("find", errno.ENOMEM, FluxionError, errno.ENOMEM, lambda m: m.find("status=up")),
        ("match_satisfy", errno.EINVAL, InvalidJobspec, errno.EINVAL, lambda m: m.satisfy(ASK)),
        ("get_status", errno.EINVAL, InvalidGraph, errno.EINVAL, lambda m: m.get_status("/cluster0")),
        ("get_rank_status", errno.EINVAL, InvalidGraph, errno.EINVAL, lambda m: m.get_rank_status(0)),
        ("remove_subgraph", 0, InvalidGraph, errno.EINVAL, lambda m: m.remove_subgraph("/cluster0/node0")),
        ("clone", errno.EPROTO, InvalidGraph, errno.EPROTO, lambda m: m.clone()),
    ],
)
def test_a_failed_call_is_told_by_its_kind(
    fake: Fake, function: str, code: int, kind: type[FluxionError], given: int, call: Callable[[Matcher], Any]
) -> None:
    matcher = fake.matcher(machine())
    matcher.allocate(ASK)
    before = matcher.stat()
    fake.fail(function, errno=code, text="the reason")
    with pytest.raises(FluxionError, match="the reason") as caught:
        call(matcher)
    assert (type(caught.value), caught.value.errno) == (kind, given)
    assert matcher.stat() == before


def test_a_graph_that_the_library_refuses_is_named_and_leaves_nothing(fake: Fake) -> None:
    alive = fake.controls.fake_alive()
    for function, code in (("initialize", errno.EPROTO), ("new", 0)):
        fake.fail(function, errno=code, text="no root")
        with pytest.raises(FluxionError) as caught:
            fake.matcher(machine())
        assert caught.value.errno == (errno.EPROTO if code else errno.ENOMEM)
        fake.forget()
    assert fake.controls.fake_alive() == alive


@pytest.mark.parametrize("answer", [None, "no json", ""])
def test_an_answer_that_cannot_be_read_is_an_error_and_holds_nothing(fake: Fake, answer: str | None) -> None:
    matcher = fake.matcher(machine())
    fake.give(answer)
    for operation in (matcher.allocate, matcher.without_allocating):
        with pytest.raises(FluxionError, match="JSON") as caught:
            operation(ASK)
        assert caught.value.errno == errno.EPROTO
    assert fake.called("cancel") == [["1", "0"]]
    assert matcher.stat()["jobs"]["ALLOCATED"] == 0


def test_a_library_that_is_not_there_is_named_with_the_remedy(tmp_path: Path) -> None:
    for path in (tmp_path / "none.so", str(tmp_path / "none.so")):
        with pytest.raises(NotSupported, match=r"none\.so.*FLUXION_REAPI_LIB") as caught:
            Matcher(machine(), engine="reapi", library=path)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(NotSupported, match="cannot be opened"):
        Matcher(machine(), engine="reapi", library=str(tmp_path / "text.so"))


def refused(path: object) -> str:
    with pytest.raises(
        NotSupported, match=r"; install flux-sched, or set library= or FLUXION_REAPI_LIB to the path of "
    ) as caught:
        Matcher(machine(), engine="reapi", library=str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_what_is_no_library_for_this_machine_is_told_by_its_cause(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "a folder, not a file" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe.so")
    assert "not a regular file" in refused(tmp_path / "pipe.so")
    header = bytearray(built.read_bytes())
    for place, value in ((18, 0xF3), (4, 1)):  # e_machine: RISC-V; EI_CLASS: 32 bits
        other = bytearray(header)
        other[place] = value
        (tmp_path / f"other{place}.so").write_bytes(other)
        assert "a different architecture" in refused(tmp_path / f"other{place}.so")
    for length in (30, 1000, len(header) - 1):
        (tmp_path / "half.so").write_bytes(header[:length])
        assert "cut off" in refused(tmp_path / "half.so")
    (tmp_path / "empty.so").touch()
    refused(tmp_path / "empty.so")
    monkeypatch.setenv(library.VARIABLE, str(tmp_path))
    with pytest.raises(NotSupported, match="a folder, not a file"):
        Matcher(machine(), engine="reapi")


def test_an_empty_variable_names_nothing(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.VARIABLE, "")
    monkeypatch.setattr(library, "find_library", lambda _: None)
    with pytest.raises(NotSupported, match=r"library 'libreapi_cli\.so': cannot be opened"):
        Matcher(machine(), engine="reapi")


@pytest.mark.parametrize("path", [5, b"x", "", "a\0b", ["x"], "\udcff"])
def test_a_path_is_a_path(path: Any) -> None:
    with pytest.raises(NotSupported, match="library"):
        Matcher(machine(), engine="reapi", library=path)


def test_the_library_is_found_by_the_variable_and_by_the_loader(
    built: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Fake(built).controls.fake_reset()
    monkeypatch.setenv(library.VARIABLE, str(built))
    assert Matcher(machine(), engine="reapi").allocate(ASK).jobid == 1
    monkeypatch.setenv(library.VARIABLE, str(tmp_path / "none.so"))
    with pytest.raises(NotSupported, match=r"none\.so"):
        Matcher(machine(), engine="reapi")
    assert Matcher(machine(), engine="reapi", library=str(built)).allocate(ASK).jobid == 1
    monkeypatch.delenv(library.VARIABLE)
    monkeypatch.setattr(library, "find_library", lambda name: str(built) if name == "reapi_cli" else None)
    assert Matcher(machine(), engine="reapi").allocate(ASK).jobid == 1


def test_a_missing_function_is_named(tmp_path: Path) -> None:
    old = build(tmp_path / "old.so", "-DWITHOUT_CLONE")
    with pytest.raises(NotSupported, match=r"reapi_cli_clone is missing; flux-sched 0\.54"):
        Matcher(machine(), engine="reapi", library=str(old))
    (tmp_path / "empty.c").write_text("int nothing;")
    empty = build(tmp_path / "empty.so", source=tmp_path / "empty.c")
    with pytest.raises(NotSupported, match=re.escape(str(empty))):
        Matcher(machine(), engine="reapi", library=str(empty))


def test_the_functions_are_those_that_the_reference_page_names() -> None:
    page = (Path(__file__).parents[4] / "docs" / "reference" / "matcher.md").read_text()
    assert set(re.findall(r"`reapi_cli_(\w+)`", page)) == library.SIGNATURES.keys()

"""A library with the symbols of Fluxion's C API, built here, that gives the answers which a test sets."""

import ctypes
import gc
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fluxion_cy import Matcher
from fluxion_cy.reapi import library

SOURCE = Path(__file__).parent / "fake_reapi.c"


def build(target: Path, *options: str, source: Path = SOURCE) -> Path:
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", *options, "-o", target, source], check=True, timeout=300)
    return target


class Fake:
    """The library's controls, and what it was asked."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.controls = ctypes.CDLL(self.path)
        self.controls.fake_log.restype = ctypes.c_char_p
        self.controls.fake_answer.argtypes = [ctypes.c_int64, ctypes.c_bool, ctypes.c_bool, ctypes.c_uint]
        self.freed: list[int] = []

    def fail(self, function: str, rc: int = -1, errno: int = 0, text: str = "went wrong") -> None:
        self.controls.fake_text(text.encode())
        self.controls.fake_fail(function.encode(), rc, errno)

    def forget(self) -> None:
        self.controls.fake_forget()

    def give(self, text: str | None) -> None:
        self.controls.fake_R(None if text is None else text.encode())

    def answer(self, at: int = 0, reserved: bool = False, flag: bool = True, microseconds: int = 0) -> None:
        self.controls.fake_answer(at, reserved, flag, microseconds)

    @property
    def calls(self) -> list[list[str]]:
        return [line.split("\t") for line in self.controls.fake_log().decode().splitlines()]

    def called(self, function: str) -> list[list[str]]:
        return [call[1:] for call in self.calls if call[0] == function]

    @property
    def given(self) -> list[int]:
        room = (ctypes.c_void_p * 4096)()
        return [address for address in room[: self.controls.fake_given(room)] if address is not None]

    def matcher(self, graph: Any, **options: Any) -> Matcher:
        return Matcher(graph, engine="reapi", library=self.path, **options)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fake") / "libfake_reapi.so")


@pytest.fixture
def fake(built: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    monkeypatch.setattr(library, "_opened", {})
    monkeypatch.delenv(library.VARIABLE, raising=False)
    gc.collect()
    found = Fake(built)
    found.controls.fake_reset()
    opened = library.open_library(found.path)
    free = opened.free

    def count(pointer: int) -> None:
        found.freed.append(pointer)
        free(pointer)

    monkeypatch.setattr(opened, "free", count)
    yield found
    assert sorted(found.freed) == sorted(found.given), "what the library allocates is freed once"

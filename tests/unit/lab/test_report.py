"""Reports: one file that holds every pod and reason, its JSON, and nothing that leaves it."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fluence_lab.report import HtmlReport
from session_scheduler.cli import entry_points, main
from session_scheduler.errors import InputError

ROOT = Path(__file__).parents[3]
QUEUES = str(ROOT / "examples/03-queues")
EVIL = "<script>alert(1)</script>"
EMPTY = {"pods": [], "groups": [], "summary": {"scheduled": 0, "unschedulable": 0}}
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """The text of a page without scripts, its addresses, and its download."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.addresses, self.tags = "", list[str](), list[str]()
        self._inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self._inside.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]

    def handle_endtag(self, tag: str) -> None:
        assert self._inside.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"}.intersection(self._inside):
            self.text += data

    @property
    def result(self) -> Any:
        [address] = [one for one in self.addresses if one.startswith("data:")]
        return json.loads(base64.b64decode(address.partition("base64,")[2]))


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    known = entry_points.loaded

    def loaded(group: str, **more: Any) -> dict[str, Any]:
        return {"html": HtmlReport} if group == entry_points.REPORTS_GROUP else known(group, **more)

    monkeypatch.setattr(entry_points, "loaded", loaded)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def called(*words: str) -> tuple[int, str, str]:
        code = main(words)
        out, err = capsys.readouterr()
        return code, out, err

    return called


Run = Callable[..., tuple[int, str, str]]


@pytest.mark.usefixtures("_installed")
def test_the_report_of_simulate_has_every_pod_and_reason_and_its_json(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    _, plain, _ = run("simulate", QUEUES, "-o", "json")
    code, out, _ = run("simulate", QUEUES, "-o", "json", "--html", str(file))
    assert (code, out) == (1, plain)
    page = Page(file.read_text())
    assert page.result == json.loads(plain)
    for pod in page.result["pods"]:
        assert f"{pod['namespace']}/{pod['name']}" in page.text
        assert pod["reason"] is None or pod["reason"] in page.text
    assert all(address.startswith("data:") for address in page.addresses)


@pytest.mark.usefixtures("_installed")
def test_the_report_of_a_what_if_has_the_changed_placements(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    code, _, _ = run("simulate", QUEUES, "--add-nodes", "1xn1", "--without-plugin", "Proportion", "--html", str(file))
    page = Page(file.read_text())
    assert code == 1
    assert len(page.result["diff"]["pods"]) > 0
    assert "Changed placements" in page.text


@pytest.mark.usefixtures("_installed")
def test_the_report_of_explain_has_verdicts_and_timings(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    code, out, _ = run("explain", str(ROOT / "examples/02-why-pending"), "--html", str(file))
    page = Page(file.read_text())
    assert code == 0
    assert "time: " in out
    assert "at most 0 pods matching app=web ran on n1 (1 now)" in page.text
    assert "Time by plugin" in page.text
    assert {f"{pod['namespace']}/{pod['name']}" in page.text for pod in page.result["pods"]} == {True}


@pytest.mark.usefixtures("_installed")
def test_the_report_of_status_has_pods_queues_and_nodes(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    code, _, _ = run("status", QUEUES, "--html", str(file))
    page = Page(file.read_text())
    assert code == 0
    for text in ("36 pods are pending and 0 run on 2 nodes.", "default/collide-9", "physics", "Nodes and topology"):
        assert text in page.text


@pytest.mark.usefixtures("_installed")
def test_the_report_of_chosen_pods_has_no_other_pods(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    run("status", "pod/fold-0", QUEUES, "--html", str(file))
    page = Page(file.read_text())
    assert "default/fold-0" in page.text
    assert "default/fold-1 " not in page.text
    assert "Nodes and topology" not in page.text


def test_markup_in_names_and_reasons_is_inert(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    pod = {"namespace": EVIL, "name": EVIL, "group": EVIL, "node": None, "backend": EVIL, "reason": EVIL}
    result = {"pods": [pod], "groups": [], "summary": {"scheduled": 0, "unschedulable": 1, "problems": {EVIL: EVIL}}}
    HtmlReport(file).write("simulate", result)
    page = Page(file.read_text())
    assert page.tags.count("script") == 2
    assert f"{EVIL}/{EVIL}" in page.text
    assert page.result == result


@pytest.mark.usefixtures("_installed")
def test_a_file_that_cannot_be_written_is_named_before_the_work(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "no" / "report.html"
    code, out, err = run("simulate", QUEUES, "--html", str(file))
    assert (code, out) == (2, "")
    remedy = "create it, or name another file"
    assert err == f"fluence: --html {file}: {file.parent} is not a directory; {remedy}\n"


def test_an_unfinished_report_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "report.html"
    file.write_text("before")

    def full(path: Path, text: str, encoding: str) -> int:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\); name another file"):
        HtmlReport(file).write("simulate", EMPTY)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert file.read_text() == "before"


def test_a_report_is_written_into_a_pipe_or_device_instead_of_replacing_it() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as reading, ThreadPoolExecutor() as pool:
        read = pool.submit(reading.read)
        try:
            HtmlReport(Path(f"/dev/fd/{writer}")).write("simulate", EMPTY)
        finally:
            os.close(writer)
        assert Page(read.result()).result == EMPTY


def test_a_report_replaces_the_target_of_a_link(tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    HtmlReport(link).write("simulate", EMPTY)
    assert link.is_symlink()
    assert Page(target.read_text()).result == EMPTY


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("name", ["", "."])
def test_a_directory_as_the_file_is_named_before_the_work(run: Run, name: str) -> None:
    assert run("simulate", QUEUES, "--html", name) == (2, "", "fluence: --html .: is a directory; name a file\n")


def test_without_bokeh_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("session_scheduler.base.extras.find_spec", lambda _: None)
    with pytest.raises(InputError) as refused:
        HtmlReport(tmp_path / "report.html")
    assert str(refused.value) == (
        "--html needs bokeh, which is not installed; run pip install 'fluence-scheduler[dashboard]'"
    )


def test_without_the_lab_one_line_names_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(entry_points, "loaded", lambda *_, **__: {})
    code, out, err = run("simulate", QUEUES, "--html", str(tmp_path / "report.html"))
    assert (code, out) == (2, "")
    remedy = "run pip install 'fluence-scheduler[dashboard]'"
    assert err == f"fluence: --html: no installed package writes reports; {remedy}\n"

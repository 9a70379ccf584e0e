"""What `fluence webhook` says of options that it cannot use, and of handlers."""

import logging
import re
import signal
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from fluence_plugins.env_injection.fluxion import FluxionHandler
from fluence_plugins.env_injection.handlers import GROUP, HandlerSettings, load_handlers
from session_scheduler.cli import main
from session_scheduler.errors import InputError

from .reviewing import Labels

SETTINGS = HandlerSettings(frozenset({"fluence"}), None, CollectorRegistry())


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No cluster is configured, there is no file; signals and logs are as before afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("FLUENCE_RESOURCES", raising=False)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    handlers, level = list(logging.root.handlers), logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("options", "problem"), [
    (["--handlers", "other"], "--handlers: unknown handler 'other'; choose from fluxion"),
    (["--handlers", "fluxion,other"], "--handlers: unknown handler 'other'; choose from fluxion"),
    (["--handlers", " , "], "--handlers: expected at least one handler; choose from fluxion"),
    (["--tls-cert", "a.pem"], "--tls-cert and --tls-key: set both or neither"),
    (["--tls-cert", "no.pem", "--tls-key", "no.pem"], "no.pem: cannot be read (No such file or directory)"),
    (["--service", "Webhook"], "--service: 'Webhook' is not a valid DNS name"),
    (["--dns-name", "a..b"], "--dns-name: 'a..b' is not a valid DNS name"),
    (["--dns-name", "größer.example.com"], "--dns-name: 'größer.example.com' is not a valid DNS name"),
    (["--resources", "no.yaml"], "no.yaml: cannot be read"),
    (["--host", "192.0.2.1"], "--host: cannot bind 192.0.2.1:0"),
    (["--host", "a..b"], "--host: cannot bind a..b:0"),
    (["--scheduler-name="], "--scheduler-name: '' is not a valid DNS name"),
    (["--check-interval", "1e400"], "--check-interval"),
    ([], "none: the file does not exist"),
])  # fmt: skip
@pytest.mark.usefixtures("unreachable")
def test_an_invalid_option_is_an_error_of_one_line_with_status_2(
    options: list[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["webhook", "--tls-port", "0", "--port", "0", "--host", "127.0.0.1", *options]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "[fluence-webhook]" not in line]
    assert len([line for line in lines if problem in line]) == 1, lines
    assert "Traceback" not in "".join(lines)


def test_handlers_are_entry_points_and_run_in_the_order_of_the_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(group: str) -> list[SimpleNamespace]:
        assert group == GROUP == "fluence.webhook_handlers"
        return [SimpleNamespace(name=name, load=lambda: lambda _settings: Labels()) for name in ("a", "b", "c")]

    monkeypatch.setattr(metadata, "entry_points", found)
    assert list(load_handlers(["c", "a", "c"], SETTINGS)) == ["c", "a"]
    with pytest.raises(InputError, match=r"--handlers: unknown handler 'd'; choose from a, b, c$"):
        load_handlers(["a", "d"], SETTINGS)


def test_an_invalid_handler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    none = SimpleNamespace(name="a", load=lambda: lambda _settings: object())
    monkeypatch.setattr(metadata, "entry_points", lambda group: [none])
    with pytest.raises(InputError, match=r"--handlers: a is not a handler: it has no operations; fix or uninstall it$"):
        load_handlers(["a"], SETTINGS)


def test_the_distribution_offers_the_handler_fluxion() -> None:
    assert isinstance(load_handlers(["fluxion"], SETTINGS)["fluxion"], FluxionHandler)


def test_a_handler_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> Callable[[HandlerSettings], Labels]:
        raise ImportError("no module\nnamed x")

    monkeypatch.setattr(
        "fluence_plugins.env_injection.handlers.metadata.entry_points",
        lambda group: [SimpleNamespace(name="a", load=load)],
    )
    with pytest.raises(
        InputError, match=re.escape("a cannot be imported (ImportError: no module named x); fix or reinstall it")
    ):
        load_handlers(["a"], SETTINGS)

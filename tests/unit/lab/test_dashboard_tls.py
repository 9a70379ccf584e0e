"""The dashboard over HTTPS, and its probes."""

from __future__ import annotations

import ssl
from pathlib import Path

import aiohttp
import pytest

from fluence_lab.dashboard.run import serving, tls_context
from session_scheduler.errors import InputError

from ...queues.certificates import write_certificate
from .test_server import World


async def test_pages_are_served_over_https_with_secure_cookies(tmp_path: Path) -> None:
    world, certificate = World(), write_certificate(tmp_path)
    context = tls_context((str(certificate), str(tmp_path / "tls.key")))
    trusted = ssl.create_default_context(cafile=certificate)
    async with (
        serving(world.dashboard, "127.0.0.1", 0, context) as address,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted)) as session,
    ):
        url = f"https://{address}"
        async with session.get(f"{url}/healthz") as response:
            assert await response.text() == "ok"
        headers = {"Origin": url}
        async with session.post(
            f"{url}/login", data={"token": "bob"}, headers=headers, allow_redirects=False
        ) as response:
            assert response.status == 303
            (cookie,) = response.cookies.values()
            assert cookie["secure"]


def test_without_files_there_is_no_tls() -> None:
    assert tls_context(None) is None


def test_wrong_files_are_one_line(tmp_path: Path) -> None:
    certificate = write_certificate(tmp_path)
    (tmp_path / "wrong.key").write_text("no key")
    with pytest.raises(InputError, match=r"--tls-cert .*tls.crt, --tls-key .*wrong.key: .*; name PEM files"):
        tls_context((str(certificate), str(tmp_path / "wrong.key")))
    with pytest.raises(InputError, match="No such file or directory; name PEM files"):
        tls_context((str(tmp_path / "none.crt"), str(tmp_path / "none.key")))

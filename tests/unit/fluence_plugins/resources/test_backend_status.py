"""`fluence backend`: a ConfigMap is written only as it was read, a file as a whole."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fluence_plugins.fluence.commands import backend
from fluence_plugins.resources.backend_status import ConfigMapText, Marked, set_in_config_map, set_in_file
from fluence_plugins.resources.errors import ResourcesError
from session_scheduler.errors import InputError
from session_scheduler.sdk.dynamic_client import Conflict

TEXT = "resources: [{type: q, name: a}, {type: q, name: b}]"
app = typer.Typer()
app.command()(backend)
WHERE = ConfigMapText("kube-system", "fluence-resources")


class Api:
    """An API server with one ConfigMap, which another client changes before each of so many writes."""

    def __init__(self, data: dict[str, str] | None, others: int = 0) -> None:
        self.data = data
        self.version = 1
        self.others = others
        self.patches = 0

    async def get(self, path: str) -> dict[str, Any]:
        assert path == "/api/v1/namespaces/kube-system/configmaps/fluence-resources"
        return {"metadata": {"resourceVersion": str(self.version)}, "data": self.data}

    async def patch(self, path: str, patch: dict[str, Any]) -> dict[str, Any]:
        self.patches += 1
        if self.others and self.data is not None:
            self.others -= 1
            self.version += 1
            self.data["resources.yaml"] = self.data["resources.yaml"].replace("name: b}", f"name: b{self.version}}}", 1)
        if patch["metadata"]["resourceVersion"] != str(self.version):
            raise Conflict("it has changed")
        assert self.data is not None
        self.data |= patch["data"]
        return {}


def drain(api: Api, name: str = "a") -> Marked:
    return asyncio.run(set_in_config_map(api, WHERE, name, down=True))  # type: ignore[arg-type]


def test_the_status_is_patched_and_nothing_else() -> None:
    api = Api({"resources.yaml": TEXT, "other": "stays"})
    assert drain(api)
    assert api.data == {"resources.yaml": TEXT.replace("name: a", "name: a, status: down"), "other": "stays"}
    assert not drain(api)
    assert api.patches == 1


def test_what_somebody_else_wrote_meanwhile_is_kept() -> None:
    api = Api({"resources.yaml": TEXT}, others=1)
    assert drain(api)
    assert api.data == {"resources.yaml": "resources: [{type: q, name: a, status: down}, {type: q, name: b2}]"}


def test_who_is_always_overtaken_gives_up() -> None:
    api = Api({"resources.yaml": TEXT}, others=99)
    with pytest.raises(Conflict):
        drain(api)
    assert api.patches == 5


@pytest.mark.parametrize("data", [None, {}, {"resources.yml": TEXT}])
def test_a_config_map_without_resources_is_one_line(data: dict[str, str] | None) -> None:
    with pytest.raises(ResourcesError, match=r"ConfigMap kube-system/fluence-resources: has no resources\.yaml"):
        drain(Api(data))


def test_a_file_is_replaced_and_keeps_its_mode_and_what_links_to_it(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "resources.yaml"
    real.write_text(TEXT)
    real.chmod(0o640)
    link.symlink_to(real)
    assert set_in_file(str(link), "b", down=True)
    assert real.read_text() == TEXT.replace("name: b", "name: b, status: down")
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert not set_in_file(str(link), "b", down=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["real.yaml", "resources.yaml"]


def test_a_file_that_is_not_there_or_has_no_such_resource_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ResourcesError, match="cannot be read"):
        set_in_file(str(tmp_path / "none.yaml"), "a", down=True)
    file = tmp_path / "resources.yaml"
    file.write_text(TEXT)
    with pytest.raises(ResourcesError, match="no resource has the name 'c'"):
        set_in_file(str(file), "c", down=True)
    assert file.read_text() == TEXT


def test_options_of_the_cluster_are_rejected_for_a_file(tmp_path: Path) -> None:
    file = tmp_path / "resources.yaml"
    file.write_text(TEXT)
    ended = CliRunner().invoke(app, ["drain", "a", "--resources", str(file), "--configmap", "mine", "--context", "c"])
    assert isinstance(ended.exception, InputError)
    assert str(ended.exception).startswith("--configmap, --context: no effect on the file of --resources; ")
    assert file.read_text() == TEXT


NESTED = """
resources:
  - type: farm
    name: east
    status: down
    with: [{type: rack, status: down, with: [{type: q, name: a, status: down}]}]
  - {type: q, name: b, parent: a}
  - {type: q, name: c}
"""


def test_who_is_up_again_within_what_is_down_is_told_so(tmp_path: Path) -> None:
    file = tmp_path / "resources.yaml"
    file.write_text(NESTED)
    assert set_in_file(str(file), "b", down=False).within == ("a", "rack", "east")
    marked = set_in_file(str(file), "a", down=False)
    assert marked
    assert marked.within == ("rack", "east")
    assert set_in_file(str(file), "c", down=True).within == ()
    again = CliRunner().invoke(app, ["resume", "a", "--resources", str(file)])
    assert again.stdout.endswith(
        "a is already up, but stays drained while a resource that contains it is down: rack, east\n"
    )
    api = Api({"resources.yaml": NESTED})
    resumed = asyncio.run(set_in_config_map(api, WHERE, "a", down=False))  # type: ignore[arg-type]
    assert (resumed.changed, resumed.within) == (True, ("rack", "east"))

"""What the dashboard records about pods that are gone."""

from __future__ import annotations

import json

import pytest

from .world import World


@pytest.mark.parametrize("ends_as", ["evicted", "ended"])
def test_a_member_that_is_gone_at_once_has_ended_or_was_evicted(world: World, ends_as: str) -> None:
    """The API server sets the condition DisruptionTarget and deletes the pod within milliseconds."""
    gang, token = f"short-{ends_as}", world.plane.token()
    page = f"/api/gangs?gang=science/{gang}"

    def members() -> dict[str, str]:
        return {row[0]: row[1] for row in json.loads(world.get(page, token)[1])["tables"]["members"]["rows"]}

    world.create_gang("science", gang, 2)
    pod = f"{gang}-0"
    try:
        world.until("running members", lambda: [*members().values()] == ["runs"] * 2)
        if ends_as == "evicted":
            world.evict("science", pod)
        else:
            world.delete("science", pod)
        world.until("end", lambda: members().get(f"science/{pod}") in ("ended", "evicted"))
        assert members() == {f"science/{pod}": ends_as, f"science/{gang}-1": "runs"}
    finally:
        world.delete_gang("science", gang, 2)

from pathlib import Path
from typing import Any

import pytest

from session_scheduler.config.settings import Profile, SchedulerConfig, load_config, parse_config, without_secrets
from session_scheduler.errors import InputError

HEAD = "apiVersion: fluence.flux-framework.org/v1alpha1\nkind: SchedulerConfiguration\n"
DEFAULTS = ("A", "B", "C")


def _names(profile: Profile) -> list[str]:
    return [plugin.name for plugin in profile.effective_plugins(DEFAULTS)]


def _lines(text: str) -> list[str]:
    with pytest.raises(InputError) as refused:
        parse_config(text, "f.yaml")
    return list(refused.value.messages)


def test_a_file_with_only_a_head_is_the_default_configuration():
    config = parse_config(HEAD, "f.yaml")
    assert config.profiles[0].scheduler_name == "fluence"
    assert config.actions == ("allocate", "preempt", "reclaim")
    assert (config.backoff.initial_seconds, config.backoff.max_seconds) == (1, 10)
    assert (config.bindings_in_flight, config.seed) == (64, 0)
    assert config.model_dump() == SchedulerConfig().model_dump()


def test_fields_are_camel_case_in_the_file():
    config = parse_config(HEAD + "bindingsInFlight: 2\nbackoff: {initialSeconds: 0.5}\ncycleSeconds: 3", "f.yaml")
    assert (config.bindings_in_flight, config.backoff.initial_seconds, config.cycle_seconds) == (2, 0.5, 3)
    assert _lines(HEAD + "bindings_in_flight: 2") == [
        "f.yaml: bindings_in_flight: unknown field; did you mean bindingsInFlight?"
    ]


def test_a_default_plugin_is_configured_in_its_place_and_others_follow_in_the_order_of_the_file():
    text = HEAD + "profiles: [{plugins: [{name: z}, {name: B, weight: 3}, {name: y}]}]"
    profile = parse_config(text, "f.yaml").profiles[0]
    assert _names(profile) == ["A", "B", "C", "z", "y"]
    assert profile.effective_plugins(DEFAULTS)[1].weight == 3


def test_a_plugin_is_switched_off_by_name():
    assert _names(parse_config(HEAD + "profiles: [{plugins: [{name: B, enabled: false}]}]", "f").profiles[0]) == [
        "A",
        "C",
    ]


def test_without_defaults_the_file_s_list_is_the_whole_list():
    text = HEAD + "profiles: [{defaults: false, plugins: [{name: C}, {name: A}]}]"
    assert _names(parse_config(text, "f").profiles[0]) == ["C", "A"]


def test_setting_arguments_keeps_the_plugin_s_place_and_its_other_arguments():
    text = HEAD + "profiles: [{plugins: [{name: z, args: {a: 1, b: 2}}, {name: y}]}]"
    profile = parse_config(text, "f").profiles[0].with_arguments("z", {"b": 3})
    assert [plugin.name for plugin in profile.plugins] == ["z", "y"]
    assert profile.plugins[0].args == {"a": 1, "b": 3}


def test_the_place_of_a_plugin_is_its_path_in_its_file():
    text = HEAD + "profiles: [{schedulerName: a}, {schedulerName: b, plugins: [{name: x}, {name: y}]}]"
    assert parse_config(text, "f.yaml").profiles[1].place_of("y") == ("f.yaml", "profiles[1].plugins[1]")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("sede: 1", "f.yaml: sede: unknown field; did you mean seed?"),
        ("seed: '1'", 'f.yaml: seed: is "1"; use a whole number'),
        ("seed: -1", "f.yaml: seed: is -1; use 0 or more"),
        (
            "seed: 18446744073709551616",
            "f.yaml: seed: is 18446744073709551616; use a number less than 18446744073709551616",
        ),
        ("seed: 1.5", "f.yaml: seed: is 1.5; use a whole number"),
        ("cycleSeconds: 0", "f.yaml: cycleSeconds: is 0; use a number greater than 0"),
        ("cycleSeconds: .inf", "f.yaml: cycleSeconds: is Infinity; use a finite number"),
        ("bindingsInFlight: 0", "f.yaml: bindingsInFlight: is 0; use 1 or more"),
        ("backoff: null", "f.yaml: backoff: is null; use a mapping"),
        ("backoff: {maxSeconds: 0.5}", "f.yaml: backoff.maxSeconds: is 0.5, below initialSeconds; use 1 or more"),
        ("profiles: []", "f.yaml: profiles: is []; list 1 or more entries"),
        ('profiles: [{schedulerName: ""}]', 'f.yaml: profiles[0].schedulerName: is ""; use 1 or more characters'),
        ("profiles: {}", "f.yaml: profiles: is {}; use a list"),
        (
            "actions: [alocate]",
            "f.yaml: actions[0]: unknown action 'alocate'; use allocate, preempt, backfill, reclaim, "
            "consolidate, stale-gang-eviction",
        ),
        ("profiles: [{defaults: yes}]", 'f.yaml: profiles[0].defaults: is "yes"; use true or false'),
        ("profiles: [{plugins: [A]}]", 'f.yaml: profiles[0].plugins[0]: is "A"; use a mapping'),
        ("profiles: [{plugins: [{weight: 1}]}]", "f.yaml: profiles[0].plugins[0].name: is missing; add it"),
        (
            "profiles: [{plugins: [{name: A, weight: -1}]}]",
            "f.yaml: profiles[0].plugins[0].weight: is -1; use 0 or more",
        ),
        (
            "profiles: [{plugins: [{name: A, weight: 65537}]}]",
            "f.yaml: profiles[0].plugins[0].weight: is 65537; use 65536 or less",
        ),
        (
            "profiles: [{}, {}]",
            "f.yaml: profiles[1].schedulerName: 'fluence' duplicates profiles[0]; remove one of the two",
        ),
        (
            "profiles: [{plugins: [{name: A}, {name: B}, {name: A}]}]",
            "f.yaml: profiles[0].plugins[2].name: 'A' duplicates plugins[0]; remove one of the two",
        ),
        ("seed: 1\nseed: 2", "f.yaml: line 4, column 1: key 'seed' appears twice in one mapping; remove one"),
        (
            "seed: 'x",
            "f.yaml: line 3, column 9: is not valid YAML: found unexpected end of stream; correct it",
        ),
        ("? {a: b}\n: 1", "f.yaml: line 3, column 3: expected a string as the key; quote it"),
    ],
)
def test_a_wrong_field_is_one_line_with_its_path_and_a_remedy(text: str, line: str):
    assert _lines(HEAD + text) == [line]


def test_every_wrong_field_has_its_line():
    assert _lines(HEAD + "seed: x\nprofiles: [{plugins: [{name: A, wait: 1}]}]") == [
        "f.yaml: profiles[0].plugins[0].wait: unknown field; did you mean weight?",
        'f.yaml: seed: is "x"; use a whole number',
    ]


def test_the_head_is_required_and_checked():
    assert _lines("seed: 1") == [
        "f.yaml: apiVersion: is missing; add `apiVersion: fluence.flux-framework.org/v1alpha1`",
        "f.yaml: kind: is missing; add `kind: SchedulerConfiguration`",
    ]
    assert _lines(HEAD.replace("v1alpha1", "v9")) == [
        "f.yaml: apiVersion: is \"fluence.flux-framework.org/v9\"; use 'fluence.flux-framework.org/v1alpha1'"
    ]
    assert _lines("")[0].startswith("f.yaml: expected a mapping; start with `apiVersion:")


@pytest.mark.parametrize("text", ["&a [*a]", "x: !!python/name:os.system", "a: \x00"])
def test_yaml_that_is_no_plain_data_is_refused_in_one_line(text: str):
    (line,) = _lines(text)
    assert line.startswith("f.yaml: ")
    assert "\n" not in line


def test_aliases_cannot_swell_a_small_file():
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
    )
    (line,) = _lines(bomb)
    assert "more than 100000 values" in line


def test_a_file_that_is_missing_or_not_text_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"no\.yaml: cannot be read \(No such file or directory\)"):
        load_config(tmp_path / "no.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"binary\.yaml: cannot be read \(it is not UTF-8\)"):
        load_config(tmp_path / "binary.yaml")


def test_a_huge_file_is_rejected_without_reading_it(tmp_path: Path):
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as file:
        file.truncate(1 << 40)  # sparse: no memory has room for its text
    with pytest.raises(InputError, match=r"huge\.yaml: is larger than 1 MiB; split or shorten it"):
        load_config(huge)


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        SchedulerConfig().seed = 2


def test_a_file_without_profiles_leaves_the_default_profile_as_it_is():
    parse_config("apiVersion: fluence.flux-framework.org/v1alpha1\nkind: SchedulerConfiguration\n", "some.yaml")
    assert SchedulerConfig().profiles[0].place_of("x") == ("default configuration", "profiles[0].plugins")


def test_what_is_shown_has_no_secret_however_deep_it_lies():
    hidden = "(not shown)"
    values: dict[str, Any] = {
        "apiKey": {"a": "b"},
        "servers": [{"passwordFile": "/p", "name": "one"}, ["x", {"TOKEN": None}]],
        "n": 1,
    }
    assert without_secrets(values) == {
        "apiKey": hidden,
        "servers": [{"passwordFile": hidden, "name": "one"}, ["x", {"TOKEN": hidden}]],
        "n": 1,
    }
    assert values["servers"][0]["passwordFile"] == "/p"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("nats://user:word@host:4222", "nats://(not shown)@host:4222"),
        ("tls://token@host", "tls://(not shown)@host"),
        ("nats://user:wo@rd@host", "nats://(not shown)@host"),
        ("NATS://user:word@one, wss://two@host/path", "NATS://(not shown)@one, wss://(not shown)@host/path"),
        ("https://host/path@1", "https://host/path@1"),
        ("nats://host:4222", "nats://host:4222"),
        ("me@example.com", "me@example.com"),
    ],
)
def test_an_address_is_shown_without_its_user(text: str, seen: str):
    assert without_secrets({"servers": [text], "one": text}) == {"servers": [seen], "one": seen}

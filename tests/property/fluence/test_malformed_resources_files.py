"""A thousand malformed resources files, and those that are made to cost: each is refused in one short line, or usable.

Whatever a file holds, it ends in a configuration within the limits or in one printable line that names the file. It
costs two seconds of processor time at most, and some hundred MiB. Texts are made by a seeded chance from valid ones.
"""

from __future__ import annotations

import copy
import functools
import json
import random
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from fluence_plugins.resources import names
from fluence_plugins.resources.config import (
    MAX_ATTRIBUTES,
    MAX_KEYS,
    MAX_LEVELS,
    MAX_VERTICES,
    ResourcesConfig,
    VirtualResource,
    attribute_keys,
    env_contract,
    load_resources,
    resource_types,
)
from fluence_plugins.resources.file import ResourcesFile
from session_scheduler.errors import FluenceError

from ...tools.examples import first

FILES, BATCHES = 1000, 4
LONGEST = 600
"""Characters of a message beside the file's name."""
SECONDS = 2.0
"""Of processor time, for one file, where that is more than what `plain_seconds` says."""
MIB = 256
"""By which the process may have grown at its peak."""

YAML = """\
resources:
  - type: qdevice
    name: rigetti
    attributes: aws-east
    with:
      - {type: qpu, count: 2, with: [{type: qubit, count: 4, attributes: {region: ""}}]}
  - &fpga {type: fpga, count: 4, parent: worker-1, attributes: {vendor: acme, price: 1.10}}
  - *fpga
  - {type: cooler, parent: rigetti, name: cold}
  - {type: pump, parent: cold}
attributes:
  aws-east: {region: us-east-1, connectivity: all-to-all}
"""
JSON: dict[str, Any] = {
    "resources": [
        {"type": "qdevice", "name": "a", "attributes": "s", "with": [{"type": "qpu", "count": 3}]},
        {"type": "licence", "name": "b", "count": 5, "parent": "a", "attributes": {"k": "v", "n": 8, "on": True}},
        {"type": "board", "name": "c", "parent": "b-1"},
    ],
    "attributes": {"s": {"region": "east", "vendor": "x"}, "t": {"k": None}},
}
PIECES = (
    "\x00", "\x07", "\x1b[31m", "\x7f", "\u2028", "\u200b", "\ufeff", "\ud800", "\\ud800", "\r", "\t", "\n", "\n\n- ",
    "[", "]", "{", "}", "[" * 80, "{a: " * 80, ":", ": ", "- ", "? ", "!", "!!python/object:os.system ", "!%0A ", "&a ",
    "*a", "*fpga", "<<: *fpga", "|", ">", "'", '"', "`", "@", "%TAG ! x", "---\n", "...\n", "#", "null", "~", "true",
    "-1", "1e9", ".inf", "0x10", "9" * 30, "999999999", "count: 20001", "parent: cold", "parent: rigetti", "name: cold",
    "type: ''", "type: [a]", "attributes: {class: x}", "attributes: nowhere", "attributes: {k: [1]}", "\N{SNOWMAN}",
    "x" * 300, "x" * 70_000, "a/b", "a b", "(", "with: 3", "resources: 3", "resources: []",
)  # fmt: skip
"""What is put in somewhere."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 20_001, 10**40, 1.5, "", "0", "a", "b", "c", "cluster", "s", "x y", "x" * 64,
    "x" * 300, "y" * 40_000, "\n", "\x00", "\u2028", "\ud800", "a|b", [], {}, [[]], {"": ""}, {"k": {}}, {"a\nb": 1},
    {"class": "x"}, {"k-1": "x", "k.1": "y"}, [None], ["a"] * 1000, {"type": "a"}, [{"type": "a"}],
)  # fmt: skip
"""What stands in the place of something else."""


# ------------------------------------------------------------------ mutations


def cut(chance: random.Random, text: str) -> str:
    return text[: chance.randrange(len(text))]


def drop(chance: random.Random, text: str) -> str:
    begin = chance.randrange(len(text))
    return text[:begin] + text[begin + chance.randint(1, 12) :]


def repeat(chance: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    at = chance.randrange(len(lines))
    return "".join([*lines[:at], lines[at], *lines[at:]])


def put_in(chance: random.Random, text: str) -> str:
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice(PIECES) + text[at:]


def swap(chance: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return "".join(lines)


def restructured(chance: random.Random) -> str:
    """A document with some values replaced."""
    document = json.loads(json.dumps(JSON))
    for _ in range(chance.randint(1, 3)):
        holder, key = chance.choice(places(document))
        if chance.random() < 0.2 and isinstance(holder, dict):
            holder[chance.choice(["x" * 200, "a\nb", "", "count", "with", "parent", "type"])] = copy.deepcopy(
                chance.choice(VALUES)
            )
        elif chance.random() < 0.2 and isinstance(holder[key], (dict, list)):
            for _ in range(chance.choice([3, 20, 40])):
                holder[key] = [{"type": "deep", "with": holder[key]}]
        else:
            holder[key] = copy.deepcopy(chance.choice(VALUES))
    return json.dumps(document)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place that holds a value: (container, key or index)."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in [(value, key), *places(value[key])]]


def mutant(chance: random.Random) -> str:
    if chance.random() < 0.4:
        return restructured(chance)
    text = chance.choice([YAML, YAML, json.dumps(JSON, indent=1)])
    for _ in range(chance.choice([1, 1, 2, 4])):
        text = chance.choice([cut, drop, repeat, put_in, put_in, put_in, swap])(chance, text) or "-"
    return text


# ------------------------------------------------------------------ what must hold


def assert_within_limits(config: ResourcesConfig) -> None:
    """What others make of a configuration stays within what pods, environments and graphs can carry."""

    def levels(entry: VirtualResource) -> int:
        return 1 + max(map(levels, entry.children), default=0)

    assert sum(root.size() for root in config.resources) <= MAX_VERTICES
    assert max(map(levels, config.resources), default=0) <= MAX_LEVELS
    assert len(attribute_keys(config)) <= MAX_KEYS
    assert len(env_contract(config)) == 1 + len(attribute_keys(config))
    for entry in config.walk():
        annotations = {names.attribute_annotation(key): value for key, value in entry.attributes.items()}
        assert sum(len(key) + len(value.encode()) for key, value in annotations.items()) <= MAX_ATTRIBUTES
        assert all(value.isprintable() for value in annotations.values())
    for kind in resource_types(config):
        names.check_type(kind)


@functools.cache
def plain_seconds() -> float:
    """What PyYAML alone needs, in this process and on this machine, for a plain file of the length that is allowed."""
    began = time.process_time()
    yaml.load(COSTLY["resources"], Loader=yaml.CSafeLoader)
    return time.process_time() - began


def error_of(load: Callable[[], ResourcesConfig], source: str) -> str:
    """The error that loading reports; "" where the file was loaded. Any other exception passes on."""
    began = time.process_time()
    try:
        config = load()
    except FluenceError as error:
        said = str(error)
        assert said.startswith(source)
        assert said.isprintable(), repr(said)
        assert len(said) <= len(source) + LONGEST, said[:2000]
        return said
    finally:
        took = time.process_time() - began
        assert took < SECONDS or took < plain_seconds(), f"{took:.1f} s"
    assert_within_limits(config)
    return ""


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("seed", first(range(BATCHES)))
def test_a_malformed_file_is_refused_in_one_short_line_or_is_usable(seed: int) -> None:
    chance, before = random.Random(seed), peak_mib()
    texts = [mutant(chance) for _ in range(FILES // BATCHES)]
    said = [error_of(partial(load_resources, text, "resources.yaml"), "resources.yaml") for text in texts]
    assert peak_mib() - before < MIB
    kinds = {"".join(letter for letter in line if letter.isalpha())[:40] for line in said}
    assert len(kinds) > 40, "the texts are too much alike"
    assert 0.02 < said.count("") / len(said) < 0.5


def test_the_same_holds_for_files_of_any_bytes(tmp_path: Path) -> None:
    chance, path = random.Random(4), tmp_path / "resources.yaml"
    for _ in range(200):
        content = bytearray(mutant(chance).encode(errors="surrogatepass"))
        for _ in range(chance.randint(0, 3)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(bytes(content))
        error_of(ResourcesFile(str(path)).load, str(path))


# ------------------------------------------------------------------ made to cost


def many(count: int, line: str) -> str:
    return "".join(line.format(i, i + 1) for i in range(count))


LONG = "a" * 900_000
KEYS = ", ".join(f"k{i}: x" for i in range(MAX_KEYS))
COSTLY = {
    "a name": f"resources: [{{type: a, name: '{LONG}'}}]",
    "no name": f"resources: [{{type: a, name: '!{LONG}'}}]",
    "a type": f"resources: [{{type: '{LONG}'}}]",
    "a count": f"resources: [{{type: a, count: '{LONG}'}}]",
    "a long count": "resources: [{type: a, count: [" + "1," * 150_000 + "]}]",
    "a reference": f"resources: [{{type: a, attributes: {LONG}}}]",
    "a field": f'{{"{LONG}": 1}}',
    "a key": json.dumps({"resources": [{"type": "a", "attributes": {LONG: "1"}}]}),
    "a set": json.dumps({"resources": [{"type": "a"}], "attributes": {LONG: 1}}),
    "a repeated key": f'{{"{LONG[:400_000]}": 1, "{LONG[:400_000]}": 2}}',
    "a value": f"resources: [{{type: a, attributes: {{k: '{LONG}'}}}}]",
    "an alias": f"a: *{LONG}",
    "a tag": f"a: !{LONG} x",
    "keys": "resources: [{type: a, attributes: {" + many(40_000, "k{0}: 1,") + "}}]",
    "sets": "resources: [{type: a, attributes: z}]\nattributes:\n" + many(20_000, "  s{0}: {{a: 1}}\n"),
    "parents": "resources:\n" + many(8000, "- {{type: a, name: n{0}, parent: n{1}}}\n"),
    "parents in a ring": "resources:\n" + many(20, "- {{type: a, name: n{0}, parent: n{1}}}\n")
                         + "- {type: a, name: n20, parent: n0}\n",
    "one set for all": "resources:\n" + "- {type: a, attributes: s}\n" * 15_000 + f"attributes: {{s: {{{KEYS}}}}}\n",
    "inherited": f"resources:\n- type: a\n  attributes: {{{KEYS}}}\n  with:\n"
                   + "  - {type: b, attributes: {k1: y}}\n" * 15_000,
    "inherited by value": "resources:\n- type: a\n  attributes: {k: " + "v" * 30_000 + "}\n  with:\n"
                            + "  - {type: b}\n" * 15_000,
    "resources": "resources:\n" + "- {type: a}\n" * 60_000,
    "counts": "resources: [{type: a, count: 999999999, with: [{type: b, count: 999999999}]}]",
    "aliases": "resources: [{type: a, with: &x [{type: b},{type: c}]}" + ",{type: d, with: *x}" * 30_000 + "]",
    "aliases of aliases": "a: &a0 [x,x]\n" + many(60, "b{0}: &a{1} [*a{0},*a{0}]\n"),
    "merges": "a: &a {b: 1}\nc: {<<: [" + "*a," * 100_000 + "]}\n",
    "brackets": "[" * 500_000,
    "braces": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "dashes": "- " * 400_000,
    "empty mappings": "resources: [" + "{}," * 150_000 + "]",
    "anchors": many(60_000, "- &a{0} x\n"),
    "backslashes": '"' + "\\" * 900_000,
    "spaces": " " * 900_000,
    "comments": "#" * 900_000,
}  # fmt: skip


@pytest.mark.parametrize("name", COSTLY)
def test_a_file_that_is_made_to_cost_is_cheap_to_load(name: str) -> None:
    before = peak_mib()
    error_of(partial(load_resources, COSTLY[name], "resources.yaml"), "resources.yaml")
    assert peak_mib() - before < MIB


def test_a_file_beyond_all_bounds_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "resources.yaml"
    path.write_text("# " + "\N{SNOWMAN}" * (1 << 20))  # 3 MiB, cut amid a character
    said = error_of(ResourcesFile(str(path)).load, str(path))
    assert "is larger than 1 MiB" in said

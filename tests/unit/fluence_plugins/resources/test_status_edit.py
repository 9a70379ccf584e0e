"""A resource is marked up or down at one place of the text; all else stays as it was written."""

from __future__ import annotations

import pytest

from fluence_plugins.resources.config import load_resources
from fluence_plugins.resources.errors import ResourcesError
from fluence_plugins.resources.status_edit import with_status

BLOCK = """\
# ours
resources:
  - type: qdevice   # a machine
    name: aurora    # the first
    attributes: {region: east}
    with:
      - name: inner
        type: qpu

  - {type: fpga, name: 'alveo', count: 4}
  - type: licence
    count: 2
"""


def drained(text: str, name: str) -> str:
    return with_status(text, name, down=True, source="f.yaml")[0]


def resumed(text: str, name: str) -> str:
    return with_status(text, name, down=False, source="f.yaml")[0]


def down(text: str) -> list[str | None]:
    return [resource.name or resource.type for resource in load_resources(text, "f").walk() if resource.down]


@pytest.mark.parametrize(
    ("name", "before", "after", "those_down"),
    [
        ("aurora", "    name: aurora    # the first\n", "    name: aurora    # the first\n    status: down\n",
         ["aurora", "inner"]),
        ("inner", "      - name: inner\n", "      - name: inner\n        status: down\n", ["inner"]),
        ("alveo", "name: 'alveo', count", "name: 'alveo', status: down, count", ["alveo"]),
    ],
)  # fmt: skip
def test_a_line_or_a_word_is_added_and_taken_out_again(
    name: str, before: str, after: str, those_down: list[str]
) -> None:
    text = drained(BLOCK, name)
    assert text == BLOCK.replace(before, after)
    assert down(text) == those_down
    assert down(resumed(text, name)) == []
    if name != "alveo":
        assert resumed(text, name) == BLOCK


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("resources: [{type: q, name: a}]", "resources: [{type: q, name: a, status: down}]"),
        ('{"resources": [{"name": "a", "type": "q"}]}',
         '{"resources": [{"name": "a", "status": "down", "type": "q"}]}'),
        ("resources:\n- type: q\n  name: a", "resources:\n- type: q\n  name: a\n  status: down\n"),
        ("resources:\r\n- name: a\r\n  type: q\r\n", "resources:\r\n- name: a\r\n  status: down\r\n  type: q\r\n"),
        ("resources:\n- name: a\n  status: up # well\n  type: q\n",
         "resources:\n- name: a\n  status: down # well\n  type: q\n"),
        ("resources:\n- status: up\n  name: a\n  type: q\n", "resources:\n- status: down\n  name: a\n  type: q\n"),
        ('resources:\n- {type: q, name: "a"} # größer\n',
         'resources:\n- {type: q, name: "a", status: down} # größer\n'),
        ("\ufeffresources:\n- type: q\n  name: a\n", "\ufeffresources:\n- type: q\n  name: a\n  status: down\n"),
        ("# 🦊\nresources:\n- type: q\n  name: a # 🦊\n",
         "# 🦊\nresources:\n- type: q\n  name: a # 🦊\n  status: down\n"),
        ("resources:\n- type: q\n  name: a\n  status:\n", "resources:\n- type: q\n  name: a\n  status: down\n"),
        ("a: &x {type: q}\nresources: []", None),
    ],
)  # fmt: skip
def test_in_every_style_of_writing(text: str, after: str | None) -> None:
    if after is None:
        with pytest.raises(ResourcesError):
            drained(text, "a")
        return
    changed = drained(text, "a")
    assert changed == after
    assert drained(changed, "a") == changed
    assert down(resumed(changed, "a")) == []


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("resources:\n- name: a\n  status: down\n  type: q\n", "resources:\n- name: a\n  type: q\n"),
        ("resources:\n- name: a\n  type: q\n  status: down # broken\n",
         "resources:\n- name: a\n  type: q\n  status: up # broken\n"),
        ("resources: [{status: down, type: q, name: a}]", "resources: [{status: up, type: q, name: a}]"),
        ('{"resources": [{"name": "a", "status": "down", "type": "q"}]}',
         '{"resources": [{"name": "a", "status": "up", "type": "q"}]}'),
        ("resources: [{status: 'down', type: q, name: a}]", "resources: [{status: 'up', type: q, name: a}]"),
    ],
)  # fmt: skip
def test_a_comment_beside_the_status_stays(text: str, after: str) -> None:
    assert resumed(text, "a") == after
    assert resumed(after, "a") == after


def test_what_is_below_something_down_is_marked_by_itself() -> None:
    text = drained(BLOCK, "aurora")
    assert resumed(text, "inner") == text
    both = drained(text, "inner")
    assert down(resumed(both, "aurora")) == ["inner"]


def test_one_of_many_changes_no_other() -> None:
    text = "resources:\n" + "".join(f"- {{type: q, name: n{number}}}\n" for number in range(50))
    assert down(drained(text, "n17")) == ["n17"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (BLOCK, "no resource has the name 'nope'; the names are alveo, aurora, inner"),
        ("", "no resource has the name 'nope'; the names are none"),
        ("resources: [{type: q, nam: a}]", "unknown field"),
    ],
)
def test_an_unknown_name_and_a_file_that_cannot_be_used_are_one_line(text: str, problem: str) -> None:
    with pytest.raises(ResourcesError, match=r"^f\.yaml: ") as error:
        drained(text, "nope")
    assert problem in str(error.value)


def test_what_an_alias_names_again_elsewhere_is_left_alone_there() -> None:
    text = "resources:\n- &one {type: q, name: a, attributes: &two {x: y}}\n- {type: s, name: b, attributes: *two}\n"
    assert down(drained(text, "a")) == ["a"]


@pytest.mark.parametrize(
    "text",
    ["resources:\n- ? name\n  : a\n  ? type\n  : q\n", "resources:\n- type: q\n  name:\n    'a\n\n     '\n"],
)
def test_what_is_written_strangely_is_left_for_people(text: str) -> None:
    with pytest.raises(ResourcesError):
        drained(text, "a")

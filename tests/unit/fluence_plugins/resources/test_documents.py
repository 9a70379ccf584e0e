import pytest

from fluence_plugins.resources import documents
from fluence_plugins.resources.errors import DocumentError


def test_scalars_are_those_of_yaml_1_2():
    text = "{a: no, b: true, c: 12, d: 1.5, e: 2020-01-02, f: ~, g: '12', h: 1:30}"
    expected = {"a": "no", "b": True, "c": 12, "d": 1.5, "e": "2020-01-02", "f": None, "g": "12", "h": "1:30"}
    assert documents.load(text, "f") == expected


@pytest.mark.parametrize(
    "text", ["a: 1.10\nb: true\nc: 007\nd: ''\ne:\n", '{"a":1.10,"b":true,"c":"007","d":"","e":null}']
)
def test_scalars_can_be_kept_as_they_were_written_in_both_formats(text):
    assert documents.load(text, "f", scalars="text") == {"a": "1.10", "b": "true", "c": "007", "d": "", "e": None}


@pytest.mark.parametrize("text", ["", "# only a comment\n", "   \n\n", "---\n"])
def test_an_empty_text_is_none(text):
    assert documents.load(text, "f") is None


def test_numbers_that_json_does_not_know_stay_words():
    assert documents.load('{"a": NaN}', "f", scalars="text") == {"a": "NaN"}
    assert documents.load('{"a": ' + "9" * 5000 + "}", "f") == {"a": "9" * 5000}


def test_json_with_tabs_is_read():
    assert documents.load('{\n\t"a":\t[1]\n}', "f") == {"a": [1]}


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", '{"a": 1, "b": 2, "a": 3}'])
def test_a_duplicate_key_is_refused_by_name(text):
    with pytest.raises(DocumentError, match="key 'a' appears twice"):
        documents.load(text, "f.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2\n", r"f\.yaml:2: is not valid YAML"),
        ("a: 1\n---\nb: 2\n", r"f\.yaml:2: contains a second document"),
        ("a: !!python/object:os.system x\n", "is not supported"),
        ("a: !thing x\n", "tag !thing is not supported"),
        ("? [a, b]\n: 1\n", "expected a string as the key"),
        ("a: \ud800", "contains half a character"),
        ("a: &x [*x]\n", "refers to a value that contains it"),
        ("[" * 100_000, "nested deeper than 64"),
        ('{"a":' * 100_000, "nested deeper than 64"),
        ('{"a":' * 70 + "1" + "}" * 70, "nested deeper than 64"),
        ("a: " + "x" * (1 << 20), "larger than 1 MiB"),
    ],
)
def test_an_unusable_text_is_one_clear_line(text, message):
    with pytest.raises(DocumentError, match=message) as caught:
        documents.load(text, "f.yaml")
    assert "\n" not in str(caught.value)


def test_aliases_that_expand_without_bound_are_refused():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    with pytest.raises(DocumentError, match="aliases expand to more than 200000 values"):
        documents.load("\n".join(lines), "bomb.yaml")


@pytest.mark.parametrize("word", ["08", "007", "1e3", "0o17", "+5", "0x1f", ".inf", "no", "true", "~", "<<", "1:30"])
def test_a_word_that_looks_like_something_else_is_written_so_that_it_is_read_back(word):
    value = {word: [word]}
    assert documents.load(documents.dump_yaml(value), "f") == value


def test_few_aliases_are_fine():
    assert documents.load("a: &a {k: v}\nb: *a\n", "f") == {"a": {"k": "v"}, "b": {"k": "v"}}

"""Generic resources (GRES). The expected results were tested with slurmctld 26.05."""

import pytest

from fluence_plugins.slurm_bridge.slurm.gres import DEVICE_CLASS, known_of, of_pods, parse, to_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GPU:V100:2", "gres/gpu:v100=2"),
        ("gpu:2", "gres/gpu=2"),
        ("gpu", "gres/gpu=1"),
        ("gpu:v100", "gres/gpu:v100=1"),
        ("gres/gpu=1", "gres/gpu=1"),
        ("gres/gpu:v100=1", "gres/gpu:v100=1"),
        ("gres/gpu:v100:1", "gres/gpu:v100=1"),
        ("gres/gpu:V100=1", "gres/gpu:V100=1"),
        ("gres:gpu:1", "gres/gpu=1"),
        ("GRES/gpu:1", "gres/gpu=1"),
        ("gpu=3", "gres/gpu=3"),
        ("gpu:007", "gres/gpu=7"),
        ("gres/gpu=0", "gres/gpu=0"),
        ("gres/gpu:3090=1", "gres/gpu:3090=1"),
        ("gpu:a100:1, gpu:h100:2,shard:4,", "gres/gpu:a100=1,gres/gpu:h100=2,gres/shard=4"),
        ("bandwidth:lustre:4g", "gres/bandwidth:lustre=4G"),
        ("None", ""),
    ],
)
def test_valid_texts_become_slurms_form(text: str, expected: str) -> None:
    assert to_text(parse(text)) == expected


@pytest.mark.parametrize(
    "text", ["", " , ", "gpu:", ":2", "gpu:v100:two", "gpu:a:b:2", "gpu=", "gpu=-1", "gpu=1.5", "gpu v100",
             "gpu:2(S:0)", "gpu:v100=1=2", "gpu;rm", "gpu=1e3", "gpu=9999999999999999", "gpu=²", "gres/", "x" * 200]
)  # fmt: skip
def test_an_invalid_generic_resource_is_rejected_with_a_remedy(text: str) -> None:
    with pytest.raises(ValueError, match="gres/gpu:v100=2"):
        parse(text)


@pytest.mark.parametrize("text", ["gpu:1,gpu:2", "gpu:v100:1,GPU:V100:1"])
def test_a_resource_is_named_once(text: str) -> None:
    with pytest.raises(ValueError, match="twice"):
        parse(text)


@pytest.mark.parametrize("text", ["gpu:1,gpu:v100:1", "gpu:v100:1,gpu:1"])
def test_a_name_is_with_a_type_or_without(text: str) -> None:
    with pytest.raises(ValueError, match="with and without a type"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "nodes", "expected"),
    [
        ("GPU:V100:2", ["gpu:v100:2"], "gres/gpu:v100=2"),
        ("GPU:V100:2", ["gpu:V100:2(S:0,1)"], "gres/gpu:V100=2"),
        ("gpu:v100:2", ["gpu:V100:2"], "gres/gpu:V100=2"),
        ("gpu:v100:2", ["gpu:V100:2", "gpu:v100:4"], "gres/gpu:v100=2"),
        ("gpu:v100:2", ["gpu:a100:2", ""], "gres/gpu:v100=2"),
        ("gres/gpu:V100=2", ["gpu:2"], "gres/gpu:V100=2"),
        ("gpu:1", ["GPU:V100:2"], "gres/GPU=1"),
    ],
)
def test_names_and_types_have_the_case_that_the_nodes_have(text: str, nodes: list[str], expected: str) -> None:
    assert to_text(parse(text), known_of(nodes)) == expected


def test_what_nodes_have_is_read() -> None:
    nodes = ["gpu:v100:2(S:0-1),shard:4", "gpu:a100:1,lustre:no_consume:4K,???", "(null)", ""]
    assert known_of(nodes) == {("gpu", "v100"), ("shard", ""), ("gpu", "a100"), ("lustre", "no_consume")}


def test_the_request_is_the_maximum_of_all_pods() -> None:
    needs = [{"nvidia.com/gpu": 1, "cpu": 500}, {"nvidia.com/gpu": 4}, {"memory": 5}, {"nvidia.com/gpu": 0}]
    assert to_text(of_pods(needs)) == "gres/gpu=4"


def test_resources_with_one_name_in_slurm_are_added_up_for_each_pod() -> None:
    assert to_text(of_pods([{"nvidia.com/gpu": 1, "amd.com/gpu": 2}, {"amd.com/gpu": 2}])) == "gres/gpu=3"


def test_resources_are_mapped_as_configured() -> None:
    resources = {"example.com/tpu": "tpu", "nvidia.com/mig-1g.5gb": "gpu:1g.5gb"}
    needs = [{"example.com/tpu": 2, "nvidia.com/mig-1g.5gb": 1, "nvidia.com/gpu": 8}]
    assert to_text(of_pods(needs, resources)) == "gres/gpu:1g.5gb=1,gres/tpu=2"


def test_a_device_class_is_a_type_of_gpu() -> None:
    assert to_text(of_pods([{DEVICE_CLASS + "a100": 2, DEVICE_CLASS + "dra.cpu": 4}])) == "gres/gpu:a100=2"


def test_gpus_with_and_without_a_type_together_are_rejected() -> None:
    with pytest.raises(ValueError, match="with and without a type"):
        of_pods([{DEVICE_CLASS + "a100": 2}, {"nvidia.com/gpu": 1}])


def test_pods_without_devices_request_none() -> None:
    assert of_pods([{"cpu": 1}]) == ()

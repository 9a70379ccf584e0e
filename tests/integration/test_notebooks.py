"""The notebooks under examples/notebooks run from a clean kernel in seconds, and show the numbers that they claim."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))
SECONDS = 120


def shown(name: str) -> list[str]:
    """What a notebook's cells show, as plain text. It runs in its folder, with this Python."""
    notebook = nbformat.read(FOLDER / name, as_version=4)
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(FOLDER)}})
    kernel = client.create_kernel_manager().kernel_spec
    assert kernel is not None
    assert Path(kernel.argv[0]).name.startswith("python")
    client.execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    views = [output["data"] for output in outputs if "text/html" in output.get("data", {})]
    assert sum("<iframe" in data["text/html"] for data in views) >= 3
    return [" ".join(output["data"]["text/plain"].split()) for output in outputs if "data" in output]


def test_both_notebooks_are_there_and_have_no_outputs() -> None:
    assert NAMES == ["gpu-policies.ipynb", "what-if.ipynb"]
    for name in NAMES:
        for cell in json.loads((FOLDER / name).read_text())["cells"]:
            assert not cell.get("outputs")
            assert cell.get("execution_count") is None


def test_what_if_finds_what_a_full_cluster_needs() -> None:
    texts = shown("what-if.ipynb")
    assert texts[0].startswith("Overview: 8 pods are pending and 18 run on 6 nodes.")
    assert any("now: 1 placed; two more: 4 placed. The decisions differ for 4 pods." in text for text in texts)
    assert "now 1 7.0 two more 4 7.0 two more, and the rule 7 15.0 without anti-affinity 3 7.0" in texts[-1]
    assert "training-1, training-2, training-3, training-4 two more, and the rule index" in texts[-1]


def test_gpu_policies_compares_two_policies_and_one_of_a_cell() -> None:
    assert shown("gpu-policies.ipynb")[-1] == (
        "placed GPUs in use trainings that wait shares that wait "
        "pack 40 38.0 8 0 keep usable 40 42.0 8 0 shares on T4 40 42.0 8 0"
    )

"""fluxion-cy as released: sdist, wheel, types."""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from ...tools.packages import SOURCE, Built, run

HERE = Path(__file__).parent
ERROR = re.compile(r"^mistakes\.py:(\d+): error: .*\[([\w-]+)\]$", re.MULTILINE)
#: Attributes that Cython adds, and attributes of a class that it does not expose.
NOT_IN_STUBS = r"""fluxion_cy\.engine\.\w+\.[A-Z]\w+
fluxion_cy\.engine\.\w+\.([A-Z]\w+\.)?__(test|pyx_capi|init|reduce_cython|setstate_cython|reduce|setstate)__
"""


def sources() -> set[str]:
    """The package's files in the repository, except generated ones."""
    names = ("*.py", "*.pyx", "*.pxd", "*.pyi", "py.typed")
    return {str(path.relative_to(SOURCE)) for name in names for path in (SOURCE / "src").rglob(name)}


def test_the_sdist_has_every_source_and_nothing_generated(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in found if name.startswith("src/fluxion_cy/") and Path(name).suffix} == sources()
    assert {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py", "smoke.py"} <= found


def test_the_wheel_has_modules_stubs_and_types_and_no_generated_code(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        found = set(archive.namelist())
        metadata = message_from_string(archive.read(next(n for n in found if n.endswith("/METADATA"))).decode())
    compiled = {name.partition(".")[0] for name in found if name.endswith(".so")}
    assert compiled == {str(path.relative_to(SOURCE / "src").with_suffix("")) for path in SOURCE.rglob("*.pyx")}
    assert {f"{name}.pyi" for name in compiled} <= found
    assert {name.removeprefix("src/") for name in sources()} <= found
    assert not [name for name in found if name.endswith((".cpp", ".html"))]
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-File"] == "LICENSE"
    assert str(metadata.get_payload()).strip() == (SOURCE / "README.md").read_text().strip()


def test_the_installed_wheel_passes_the_test_of_cibuildwheel(built: Built, tmp_path: Path) -> None:
    done = run([built.python, "-I", SOURCE / "smoke.py"], tmp_path)
    assert done.stdout.splitlines()[-1] == f"fluxion_cy in {built.package}: ok"


def test_a_wheel_over_the_limit_is_refused_with_its_size(built: Built, tmp_path: Path) -> None:
    check = f"import sys; sys.path.append({str(SOURCE)!r}); import smoke; smoke.size(most=1000)"
    with pytest.raises(AssertionError, match=r"fluxion-cy has [\d,]+ bytes, more than 1,000: build it without debug"):
        run([built.python, "-c", check], tmp_path)


def test_the_modules_have_no_debug_information(built: Built) -> None:
    modules = list(built.package.glob("engine/*.so"))
    assert modules
    assert not [module.name for module in modules if b".debug_info" in module.read_bytes()]


def test_a_typed_program_uses_the_whole_api(built: Built, tmp_path: Path) -> None:
    text = (HERE / "user.py").read_text()
    (tmp_path / "user.py").write_text(text)
    run([sys.executable, "-m", "mypy", "--strict", "--python-executable", built.python, "user.py"], tmp_path)
    run([built.python, "-I", "user.py"], tmp_path)
    stub = run([built.python, "-Ic", "import fluxion_cy as f; print(*f.__all__, *dir(f.Matcher))"], tmp_path).stdout
    unused = [name for name in stub.split() if not name.startswith("_") and not re.search(rf"\b{name}\b", text)]
    assert not unused


def test_a_program_with_mistakes_fails_on_their_lines(built: Built, tmp_path: Path) -> None:
    text = (HERE / "mistakes.py").read_text()
    (tmp_path / "mistakes.py").write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", built.python, "mistakes.py"]
    with pytest.raises(AssertionError) as raised:
        run([*command], tmp_path)
    found = {(int(line), code) for line, code in ERROR.findall(str(raised.value))}
    lines = enumerate(text.splitlines(), start=1)
    expected = {
        (number, word) for number, line in lines if "  # " in line for word in line.split("  # ")[1].split(", ")
    }
    assert {number for number, _ in found} == {number for number, _ in expected}
    assert found <= expected


def test_the_stubs_match_the_compiled_modules(built: Built, tmp_path: Path) -> None:
    shutil.copytree(built.package, tmp_path / "fluxion_cy")
    (tmp_path / "allowed").write_text(NOT_IN_STUBS)
    (tmp_path / "mypy.ini").write_text("[mypy]\n")
    modules = [f"fluxion_cy.engine.{path.stem}" for path in sorted(built.package.glob("engine/*.pyx"))]
    checked = "import sys; from mypy.stubtest import main; sys.exit(main())"  # -c, so that the copy comes first
    options = ["--mypy-config-file", "mypy.ini", "--allowlist", "allowed", "--ignore-unused-allowlist"]
    done = run([sys.executable, "-c", checked, *modules, *options], tmp_path)
    assert f"no issues found in {len(modules)} modules" in done.stdout


def test_wheels_are_built_for_every_python_of_the_package() -> None:
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())
    named = [word.rpartition(" ")[2] for word in project["project"]["classifiers"] if ":: Python :: 3." in word]
    wheels = project["tool"]["cibuildwheel"]
    assert wheels["build"].split() == [f"cp{version.replace('.', '')}-*" for version in named]
    assert wheels["linux"]["archs"] == ["x86_64", "aarch64"]
    assert wheels["macos"]["archs"] == ["arm64"]
    assert wheels["test-command"] == "python {package}/smoke.py"


def test_the_package_has_the_licence_of_the_repository() -> None:
    assert (SOURCE / "LICENSE").read_text() == (SOURCE.parent / "LICENSE").read_text()

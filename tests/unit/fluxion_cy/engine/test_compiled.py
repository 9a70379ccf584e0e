"""The stubs say what is there."""

import ast
import inspect
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import fluxion_cy

SOURCE = Path(__file__).parents[4] / "fluxion_cy" / "src" / "fluxion_cy"
MODULES = [import_module(f"fluxion_cy.engine.{path.stem}") for path in sorted(SOURCE.glob("engine/*.pyx"))]


def named(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


@pytest.mark.parametrize("module", MODULES)
def test_the_stub_names_every_function_with_its_arguments_and_nothing_else(module: ModuleType) -> None:
    stub = ast.parse((SOURCE / f"engine/{module.__name__.rpartition('.')[2]}.pyi").read_text())
    scopes = [
        (module, stub.body),
        *((getattr(module, c.name), c.body) for c in stub.body if isinstance(c, ast.ClassDef)),
    ]
    for scope, body in scopes:
        given = {item.name: named(item) for item in body if isinstance(item, ast.FunctionDef) and item.name[0] != "_"}
        there = {name: value for name, value in vars(scope).items() if "cyfunction" in repr(value) and name[0] != "_"}
        assert given == {name: list(inspect.signature(value).parameters) for name, value in there.items()}


def test_every_compiled_module_is_checked() -> None:
    assert len(MODULES) == len([*SOURCE.rglob("*.pyx")]) > 0
    assert all(str(module.__file__).endswith(".so") for module in MODULES)


def test_the_package_exports_what_it_says() -> None:
    assert all(hasattr(fluxion_cy, name) for name in fluxion_cy.__all__)
    assert (Path(fluxion_cy.__file__).parent / "py.typed").exists()

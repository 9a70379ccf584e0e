"""Builds the extension modules; everything else is in pyproject.toml."""

from Cython.Build import cythonize
from setuptools import Extension, setup

MODULES = ("_columns", "_store", "_plans", "_pick", "_hosts", "_index", "_walk", "_select", "_scan")

setup(
    ext_modules=cythonize(
        [
            Extension(
                f"fluxion_cy.{name}",
                [f"src/fluxion_cy/{name}.pyx"],
                language="c++",
                extra_compile_args=["-O2", "-std=c++17"],
            )
            for name in MODULES
        ],
        compiler_directives={"language_level": 3},
    )
)

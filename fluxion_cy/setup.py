"""Builds the extension modules; everything else is in pyproject.toml."""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

MODULES = (
    "_columns",
    "_store",
    "_plans",
    "_caps",
    "_pick",
    "_encoding",
    "_hosts",
    "_index",
    "_admit",
    "_walk",
    "_asked",
    "_select",
    "_scan",
    "_jobs",
    "_quick",
)

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
    ),
    options={"build_ext": {"parallel": os.cpu_count() or 1}},  # modules at once
)

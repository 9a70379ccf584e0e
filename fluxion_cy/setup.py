"""Builds the extension modules; everything else is in pyproject.toml."""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

setup(
    ext_modules=cythonize(
        Extension(
            "fluxion_cy.engine.*",
            ["src/fluxion_cy/engine/*.pyx"],
            language="c++",
            extra_compile_args=["-O2", "-std=c++17"],
        ),
        compiler_directives={"language_level": 3},
    ),
    options={"build_ext": {"parallel": os.cpu_count() or 1}},  # modules at once
)

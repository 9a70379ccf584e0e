"""Builds the extension modules; everything else is in pyproject.toml."""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

FLAGS = f"{os.environ.get('CFLAGS', '')} {os.environ.get('CXXFLAGS', '')}".split()
#: Debug information is nine tenths of a module. Python's own flags request it; here, only `-g…` in CFLAGS does.
DEBUG = [] if any(flag.startswith("-g") for flag in FLAGS) else ["-g0"]

setup(
    ext_modules=cythonize(
        Extension(
            "fluxion_cy.engine.*",
            ["src/fluxion_cy/engine/*.pyx"],
            language="c++",
            extra_compile_args=["-O2", "-std=c++17", *DEBUG],
        ),
        # Nothing pickles these classes, and the methods for it would be half of the generated code.
        compiler_directives={"language_level": 3, "auto_pickle": False},
        nthreads=os.cpu_count() or 1,
    ),
    options={"build_ext": {"parallel": os.cpu_count() or 1}},  # in parallel
)

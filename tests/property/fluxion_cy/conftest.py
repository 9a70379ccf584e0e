"""Lets the tests here import their neighbours, and those of the unit tests."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "unit" / HERE.name)]

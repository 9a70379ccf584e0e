"""Formats numbers with ranges as `first-last`, as in Flux's ranks (RFC 22) and Slurm's indices."""

from collections.abc import Iterable


def ranges(numbers: Iterable[int]) -> str:
    """The distinct numbers in order: `0-3,8`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)

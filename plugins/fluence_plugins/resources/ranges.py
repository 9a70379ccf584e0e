"""Numbers as text with runs as `first-last`, as Flux writes ranks (RFC 22) and Slurm indices."""

from collections.abc import Iterable


def ranges(numbers: Iterable[int]) -> str:
    """Some numbers, each once and in order: `0-3,8`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)

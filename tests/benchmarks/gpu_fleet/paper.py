"""The paper's figures: GPUs allocated at 100 and 130 percent of arrivals, in percent, mean of ten seeds.

Source: `experiments/analysis/expected_results` of its simulator, github.com/hkust-adsl/kubernetes-scheduler-simulator.
"""

from __future__ import annotations

from typing import Final

BEST_FIT: Final = {
    "default": (92.86, 93.08),
    "cpu050": (93.56, 93.79),
    "cpu100": (93.26, 93.44),
    "cpu200": (92.15, 92.40),
    "cpu250": (91.21, 91.45),
    "gpushare40": (91.44, 91.69),
    "gpushare60": (89.06, 89.36),
    "gpushare80": (86.66, 87.01),
    "gpushare100": (84.62, 85.01),
    "gpuspec10": (93.10, 93.30),
    "gpuspec20": (88.46, 93.30),
    "gpuspec25": (85.67, 93.23),
    "gpuspec33": (80.39, 93.09),
    "multigpu20": (93.73, 93.93),
    "multigpu30": (94.57, 94.72),
    "multigpu40": (95.10, 95.23),
    "multigpu50": (95.62, 95.74),
}
FGD: Final = {
    "default": (95.23, 95.39),
    "cpu050": (95.00, 95.21),
    "cpu100": (95.21, 95.35),
    "cpu200": (94.82, 95.05),
    "cpu250": (93.20, 93.41),
    "gpushare40": (93.96, 94.15),
    "gpushare60": (91.25, 91.40),
    "gpushare80": (89.08, 89.30),
    "gpushare100": (86.64, 86.90),
    "gpuspec10": (94.66, 94.95),
    "gpuspec20": (94.66, 94.84),
    "gpuspec25": (93.91, 94.74),
    "gpuspec33": (87.84, 94.55),
    "multigpu20": (95.53, 95.65),
    "multigpu30": (96.36, 96.46),
    "multigpu40": (96.91, 96.99),
    "multigpu50": (97.09, 97.18),
}

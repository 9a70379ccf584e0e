"""Runs `fluence` and checks its resources file ten times a second: python quick_follow.py run …"""

from __future__ import annotations

from fluence_plugins.resources.file import ResourcesFile
from session_scheduler.cli import main

defaults = ResourcesFile.changes.__kwdefaults__
assert defaults
defaults["every"] = 0.1

if __name__ == "__main__":
    main()

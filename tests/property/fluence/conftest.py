"""The properties of the plugin hold on both engines."""

from tests.tools.real_engine import engine as engine

"""The properties of the plugin hold with both engines."""

from tests.tools.real_engine import engine as engine

"""Settings for every property test: the same cases in every run, also on a slow machine."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "project",
    derandomize=True,  # a failure occurs again in the next run, and a test that passed before does not fail
    deadline=None,  # time is not a property: a test must not fail on a busy machine
    suppress_health_check=[HealthCheck.too_slow],  # the same for the speed of generating inputs
)
settings.load_profile("project")

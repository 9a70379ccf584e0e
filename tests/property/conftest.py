"""What holds for every property: the same cases in every run, on a slow machine too."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "project",
    derandomize=True,  # a failure is there again in the next run, and nothing fails that passed before
    deadline=None,  # time is no property: a busy machine must not fail a test
    suppress_health_check=[HealthCheck.too_slow],  # the same for how fast inputs are made
)
settings.load_profile("project")

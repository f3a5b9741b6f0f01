"""Numbers of random cases: the profile of hypothesis has one, and costly tests take a share."""

from hypothesis import HealthCheck, settings


def register() -> None:
    """Name the profiles of `scripts/test` and `scripts/test --all`.

    An example may compile a kernel, or wait for seconds on a busy machine.
    """
    for name, examples in (("short", 50), ("all", 1000)):
        settings.register_profile(
            name, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        )


def share_of_examples(divisor: int) -> int:
    """Return the examples of the profile, divided by this, and at least 2.

    Use it where one example is costly: `@settings(max_examples=share_of_examples(20))`.
    """
    return max(2, settings().max_examples // divisor)

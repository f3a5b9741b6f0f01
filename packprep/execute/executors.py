"""Functions that run a build, by executor; `packprep.config.executors` has their options."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from packprep.config.build_config import BuildConfig
from packprep.execute.array_tasks import array_share
from packprep.execute.job import Job
from packprep.execute.ray_tasks import run_on_ray
from packprep.support.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Runner:
    """The functions of an executor. The process that signs off does whatever they leave.

    ahead: does all it can of a job that is saved (`Job.save`) before that process begins; None
    where nothing does. share: index of the task that this command is, number of tasks, and where
    that is from, of a config and the environment; None where one command is the whole build.
    """

    ahead: Callable[[Job, Progress], None] | None = None
    share: Callable[[BuildConfig, Mapping[str, str]], tuple[int, int, str]] | None = None


RUNNERS: Final[Mapping[str, Runner]] = {
    "local": Runner(),
    "ray": Runner(ahead=run_on_ray),
    "array": Runner(share=array_share),
}
"""By the value of the option `executor`."""

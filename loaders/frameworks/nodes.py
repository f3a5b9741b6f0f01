"""A loader as a node of torchdata's graphs."""

from typing import Any

from ..loader import PackedLoader


def to_node(loader: PackedLoader) -> Any:
    """A `torchdata.nodes.BaseNode` of the loader's batches.

    Each pass is an epoch: `reset()` after the end of one begins the next. State is the loader's, so
    a `torchdata.nodes.Loader` over this node, or over nodes behind it, resumes exactly, at any
    world size. The batches are this rank's; the loader divides them.
    """
    from torchdata.nodes import BaseNode

    base: Any = BaseNode

    class LoaderNode(base):  # type: ignore[misc]
        at_end = False

        def reset(self, initial_state: dict[str, int] | None = None) -> None:
            super().reset(initial_state)
            if initial_state is not None:
                loader.load_state_dict(initial_state)
            elif self.at_end:
                loader.set_epoch(loader.epoch + 1)
            self.batches, self.at_end = iter(loader), False

        def next(self) -> Any:
            try:
                return next(self.batches)
            except StopIteration:
                self.at_end = True
                raise

        def get_state(self) -> dict[str, int]:
            return loader.state_dict()

    return LoaderNode()

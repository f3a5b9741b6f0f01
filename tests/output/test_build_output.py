"""The three outputs have the members of their interface, with the same arguments."""

import inspect
from typing import Any

import pytest

from packprep.execute.append import GrowingOutput
from packprep.output.build_output import BuildOutput, WholeOutput
from packprep.output.directory import LocalOutput
from packprep.output.remote import StoreOutput
from packprep.output.shard_folder import LocalShards, ShardFolder, StoreShards

OUTPUTS: list[tuple[type[Any], type[Any]]] = [
    (LocalOutput, WholeOutput),
    (StoreOutput, WholeOutput),
    (GrowingOutput, BuildOutput),
    (LocalShards, ShardFolder),
    (StoreShards, ShardFolder),
]


def members(interface: type[Any]) -> dict[str, Any]:
    """The public members of a protocol and of those it extends."""
    found = {name: value for base in interface.__mro__ for name, value in vars(base).items()}
    return {name: value for name, value in found.items() if not name.startswith("_")}


@pytest.mark.parametrize(("output", "interface"), OUTPUTS)
def test_an_output_has_every_method_with_the_same_arguments(
    output: type[Any], interface: type[Any]
) -> None:
    assert len(members(interface)) >= 3
    for name, member in members(interface).items():
        assert member.__doc__, name
        if inspect.isfunction(member):
            found = inspect.signature(getattr(output, name)).parameters
            assert found == inspect.signature(member).parameters, name
    if interface is not ShardFolder:
        assert "__str__" in vars(output)  # a name for sentences

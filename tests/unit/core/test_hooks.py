"""Every hook has its type: others call it as ``cloister.core.hooks`` declares it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from cloister.cli import COMMANDS, _module
from cloister.cli.party import _SERVICES
from cloister.core import hooks

HOOKS = [
    *(value for value in vars(hooks).values() if isinstance(value, hooks.Hook)),
    *hooks.MODEL_WRITERS.values(),
]


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(one.name, one.kind, one.default) for one in found if one.name != "self"]


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.place)
def test_a_hook_is_in_shares_and_there(hook: hooks.Hook[Any]) -> None:
    assert hook.place.startswith("cloister.shares.")
    assert hook.load() is not None


def test_hooks_are_called_as_they_are_declared() -> None:
    service = {name: (kind, default) for name, kind, default in parameters(hooks.Service.run)}
    for place in _SERVICES.values():
        found = {name: (kind, default) for name, kind, default in parameters(place.load().run)}
        assert found | service == found
    pairs = [
        (hooks.SCORING_CLIENT.load(), hooks.ScoringClient.__call__),
        (hooks.COMPUTE.load().run, hooks.Command.run),
        (hooks.COMPUTE.load().add_arguments, hooks.Command.add_arguments),
    ]
    for function, declared in pairs:
        assert parameters(function) == parameters(declared)
    for function in (hooks.MODEL_ENTRIES.load(), *(w.load() for w in hooks.MODEL_WRITERS.values())):
        assert len(parameters(function)) == 1


def test_every_command_is_where_its_name_says() -> None:
    for name in COMMANDS:
        command = _module(name)
        assert command is None or callable(command.add_arguments)

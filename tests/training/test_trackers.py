from __future__ import annotations

import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from tests.training.runs import make_config
from tests.training.test_display import metrics_of

from treetrain.training import tracker_names
from treetrain.training.observers import RunOutline
from treetrain.training.tracker_names import TRACKER_NAMES, check_trackers
from treetrain.training.trackers import TRACKERS, Trackers


class Service(types.ModuleType):
    """A module with the calls that trackio and wandb share, which writes down what it is told."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self.calls: list[tuple[str, Any]] = []
        self.id = "one-run"

    def init(self, *args: Any, **kwargs: Any) -> Service:
        self.calls.append(("init", kwargs))
        return self

    def log(self, figures: dict[str, float], step: int) -> None:
        self.calls.append(("log", (step, figures)))

    def finish(self, **kwargs: Any) -> None:
        self.calls.append(("finish", kwargs))


@pytest.fixture(params=["trackio", "wandb"])
def service(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Service:
    made = Service(request.param)
    monkeypatch.setitem(sys.modules, request.param, made)
    return made


def watch(folder: Path, *names: str, start: int = 0) -> Trackers:
    config = make_config(folder, steps=9, seed=3, trackers=names)
    return Trackers(RunOutline(folder, config, 9, start, [], {}, []))


def test_a_service_is_told_every_step_and_closed(service: Service, tmp_path: Path) -> None:
    with watch(tmp_path, service.__name__) as trackers:
        trackers.tell(metrics_of(1, 2.5))
        trackers.tell(metrics_of(2, 1.5))
    names = [name for name, _ in service.calls]
    assert names == ["init", "log", "log", "finish"]
    assert service.calls[0][1]["config"]["seed"] == 3
    assert service.calls[0][1]["name"] == tmp_path.name
    step, figures = service.calls[2][1]
    assert step == 2
    assert figures["loss"] == 1.5
    assert "step" not in figures
    assert all(isinstance(value, float) for value in figures.values())


def test_a_run_that_fails_closes_its_service(service: Service, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), watch(tmp_path, service.__name__):
        raise KeyboardInterrupt
    assert service.calls[-1][0] == "finish"
    if service.__name__ == "wandb":
        assert service.calls[-1][1] == {"exit_code": 1}


def test_a_resumed_run_goes_on_in_the_same_place(service: Service, tmp_path: Path) -> None:
    with watch(tmp_path, service.__name__):
        pass
    with watch(tmp_path, service.__name__, start=5):
        pass
    first, second = (kwargs for name, kwargs in service.calls if name == "init")
    assert first["resume"] in (None, "never")
    assert second["resume"] == "allow"
    assert second.get("id") == ("one-run" if service.__name__ == "wandb" else None)


def test_tensorboard_writes_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with watch(tmp_path, "tensorboard") as trackers:
        trackers.tell(metrics_of(1, 2.5))
    with watch(tmp_path, "tensorboard", start=1) as trackers:
        trackers.tell(metrics_of(2, 1.5))
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(one.step, one.value) for one in events.Scalars("loss")] == [(1, 2.5), (2, 1.5)]


def test_every_name_has_a_tracker() -> None:
    assert tuple(TRACKERS) == TRACKER_NAMES


def test_no_tracker_is_none(tmp_path: Path) -> None:
    with watch(tmp_path) as trackers:
        trackers.tell(metrics_of(1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["mlflow"], r"trackers\[0\] must be one of tensorboard, trackio, wandb, got 'mlflow'"),
        (["trackio", "trackio"], r"trackers\[1\] must be named once, got 'trackio' again"),
    ],
)
def test_names_that_mean_nothing_are_refused(
    names: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_names, "find_spec", lambda name: object())
    with pytest.raises(ValueError, match=message):
        check_trackers(names)


@pytest.mark.parametrize("name", TRACKER_NAMES)
def test_a_missing_package_is_refused_with_the_way_to_get_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_names, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=f"pip install {name}"):
        check_trackers([name])

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from treetrain.attention import slices
from treetrain.attention.names import BACKEND_NAMES
from treetrain.cli import findings
from treetrain.cli.findings import Finding, find_devices, find_optional, find_required, try_backend
from treetrain.cli.main import main


def fake_torch(*, cuda: str | None, devices: int) -> SimpleNamespace:
    properties = SimpleNamespace(name="a GPU", total_memory=80 * 2**30, major=9, minor=0)
    return SimpleNamespace(
        __version__="9.9",
        get_num_threads=lambda: 2,
        version=SimpleNamespace(cuda=cuda, hip=None),
        cuda=SimpleNamespace(
            is_available=lambda: devices > 0,
            device_count=lambda: devices,
            get_device_properties=lambda index: properties,
        ),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False)),
    )


def test_json_names_every_backend_and_the_exit_code_is_0(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    names = {one["name"] for one in found["findings"] if one["kind"] == "backend"}
    assert {f"{name} on cpu" for name in BACKEND_NAMES if name != "auto"} <= names
    assert {"python", "treetrain", "torch", "cpu"} <= {one["name"] for one in found["findings"]}


def test_what_is_not_ok_has_a_fix() -> None:
    assert all(finding.fix for finding in find_optional() if finding.state != "ok")


def test_a_broken_thing_makes_the_exit_code_1_and_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Finding("package", "torch", "broken", "1.0, older than 2.11", "pip install 'torch'")
    optional = Finding("package", "wandb", "missing", "not installed", "pip install wandb")
    monkeypatch.setattr(findings, "find_all", lambda: iter([optional, broken]))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "broken: torch"
    assert "fix: pip install 'torch'" in out
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_something_optional_that_is_missing_breaks_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    optional = Finding("package", "wandb", "missing", "not installed", "pip install wandb")
    monkeypatch.setattr(findings, "find_all", lambda: iter([optional]))
    assert main(["doctor"]) == 0
    assert "1 optional missing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("version", "state"),
    [("2.11.0", "ok"), ("2.11", "ok"), ("10.0+cpu", "ok"), ("2.9.1", "broken"), ("2.10", "broken")],
)
def test_versions_are_compared_as_numbers(
    version: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings.metadata, "requires", lambda name: ["torch>=2.11"])
    monkeypatch.setattr(findings.metadata, "version", lambda name: version)
    _, torch = find_required()
    assert (torch.name, torch.state) == ("torch", state)


def test_a_package_that_is_not_there_is_broken_with_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(name: str) -> str:
        if name == "treetrain":
            return "1"
        raise findings.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(
        findings.metadata, "requires", lambda name: ["rich>=13.7", 'x; extra == "d"']
    )
    monkeypatch.setattr(findings.metadata, "version", version)
    _, rich = find_required()
    assert rich.state == "broken"
    assert rich.fix == "pip install 'rich>=13.7'"


def test_an_installation_that_cannot_be_imported_ends_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str) -> object:
        raise OSError("libfoo.so: cannot open")

    monkeypatch.setattr(findings.importlib, "import_module", refuse)
    *_, last = findings.find_all()
    assert (last.name, last.state) == ("torch", "broken")
    assert "libfoo.so" in last.found


@pytest.mark.parametrize(
    ("cuda", "devices", "state", "found"),
    [
        (None, 0, "missing", "built without CUDA"),
        ("12.8", 0, "missing", "sees none"),
        ("12.8", 1, "ok", "a GPU, 80 GiB, capability 9.0"),
    ],
)
def test_a_gpu_is_described_or_the_reason_why_there_is_none(
    cuda: str | None, devices: int, state: str, found: str
) -> None:
    _, gpu = find_devices(fake_torch(cuda=cuda, devices=devices))
    assert gpu.state == state
    assert found in gpu.found
    assert (gpu.fix is None) is (state == "ok")


def test_a_backend_that_computes_something_else_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = slices.attend
    monkeypatch.setattr(slices, "attend", lambda *args, **kwargs: 1.5 * right(*args, **kwargs))
    assert try_backend("slices", "cpu").state == "broken"
    assert try_backend("reference", "cpu").state == "ok"

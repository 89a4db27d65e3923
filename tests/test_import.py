"""What an import costs: `import ryarn` and `ryarn --help` stay free of the heavy libraries."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ["torch", "transformers", "trl", "peft", "datasets", "accelerate", "scipy", "matplotlib"]


def loaded_after(statement: str, names: list[str]) -> list[str]:
    """Which of the modules a fresh interpreter has loaded after a statement."""
    program = (
        f"import json, sys\n{statement}\n"
        f"print(json.dumps([name for name in {names!r} if name in sys.modules]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded: list[str] = json.loads(done.stdout.splitlines()[-1])
    return loaded


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_after("import ryarn", [*HEAVY, "pydantic", "typer", "rich"]) == []


def test_help_loads_nothing_heavy() -> None:
    statement = (
        "sys.argv = ['ryarn', '--help']\n"
        "from ryarn.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )
    assert loaded_after(statement, HEAVY) == []


def test_the_probe_sees_what_is_loaded() -> None:
    assert loaded_after("import wave", ["wave", "torch"]) == ["wave"]


def test_every_public_name_exists() -> None:
    import ryarn

    assert ryarn.__all__
    for name in ryarn.__all__:
        assert getattr(ryarn, name) is not None


def test_no_module_hides_a_public_name() -> None:
    """Importing a module sets it as the package's attribute: `ryarn.load` once was one."""
    import pkgutil

    import ryarn

    modules = {found.name for found in pkgutil.iter_modules(ryarn.__path__)}
    assert modules & set(ryarn.__all__) == set()


def test_an_unknown_name_is_an_attribute_error() -> None:
    import ryarn

    with pytest.raises(AttributeError, match="no_such_name"):
        ryarn.no_such_name  # noqa: B018

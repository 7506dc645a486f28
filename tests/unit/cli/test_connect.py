from pathlib import Path

import pytest

from astra_stream.cli.connect import find_stack, open_log, open_store
from astra_stream.config import RunConfig, load_run
from astra_stream.errors import ConfigError

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "arithmetic" / "run.toml"
SASL = ("kafka.bootstrap=b:1", "kafka.security=SASL_SSL")


def config_with(*overrides: str) -> RunConfig:
    return load_run(EXAMPLE, overrides)


def test_a_run_without_broker_or_stack_says_how_to_get_one() -> None:
    with pytest.raises(ConfigError, match=r"\[kafka\] must be in the run file, or an embedded"):
        open_log(config_with(), None)
    with pytest.raises(ConfigError, match=r"\[store\] must be in the run file, or an embedded"):
        open_store(config_with(), None)


def test_a_secret_that_is_not_named_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.username_env must be given: got nothing"):
        open_log(config_with(*SASL), None)


def test_a_secret_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTRA_USER", raising=False)
    config = config_with(*SASL, "kafka.username_env=ASTRA_USER")
    with pytest.raises(ConfigError, match="environment variable ASTRA_USER must be set"):
        open_log(config, None)


def test_no_stack_is_named_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTRA_STACK", raising=False)
    assert find_stack() is None


def test_a_stack_that_never_was_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTRA_STACK", str(tmp_path))
    with pytest.raises(ConfigError, match="must hold a stack"):
        find_stack()

"""Every setting of the process, read once; environment variables are LOADSCOPE_<NAME>."""

import hashlib
import os
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from loadscope.app.hosts import is_loopback
from loadscope.app.roles import Role
from loadscope.loader.plan import Options
from loadscope.loader.topology import Layout

ENV_PREFIX = "LOADSCOPE_"
MIN_KEY_CHARACTERS, MAX_KEY_CHARACTERS = 8, 1024
Origin = Literal["serve", "reload", "load", "demo"]


def default_state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "loadscope"


class Settings(BaseSettings):
    """What `serve`, `demo` and `load` run with; the command line overrides the environment."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    model: Path | None = None
    origin: Origin = "serve"
    roots: tuple[Path, ...] = ()
    state_dir: Path = Field(default_factory=default_state_dir)
    host: str = "127.0.0.1"
    port: int = Field(default=8787, ge=0, le=65535)
    insecure: bool = False
    device: Literal["cpu", "cuda"] = "cpu"
    ranks: str | None = None
    roles: tuple[Role, ...] = Field(default=("target",), min_length=1)
    layout: Layout = Layout()
    options: Options = Options()
    pace_s: float | None = Field(default=None, gt=0)
    retention_bytes: int = Field(default=512 * 2**20, ge=2**20)
    max_clients: int = Field(default=64, ge=1)
    api_key: SecretStr | None = None
    max_body_bytes: int = Field(default=64 * 2**10, ge=2**10)
    max_reload_body_bytes: int = Field(default=16 * 2**20, ge=2**10)
    max_bucket_bytes: int = Field(default=4 * 2**30, ge=2**10)
    max_update_bytes: int | None = Field(default=None, ge=2**10)
    receive_timeout_s: float = Field(default=300.0, gt=0)
    spool_dir: Path | None = None
    memory_budget_bytes: int | None = Field(default=None, ge=1)

    @property
    def needs_key_to_read(self) -> bool:
        """Whether others can reach the address: then no answer is given without the key."""
        return not is_loopback(self.host)

    @property
    def spool_root(self) -> Path:
        """Where updates keep their buckets; no two servers have the same."""
        if self.spool_dir is None:
            return self.state_dir / "spool"
        # several servers may be told to use /dev/shm; each has its own state directory
        mark = hashlib.sha256(os.fsencode(self.state_dir.resolve())).hexdigest()[:12]
        return self.spool_dir / f"loadscope-{mark}"

    @field_validator("api_key")
    @classmethod
    def _refuse_weak_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is None:
            return None
        text = key.get_secret_value()
        is_sendable = text.isascii() and text.isprintable() and " " not in text
        if not is_sendable or not MIN_KEY_CHARACTERS <= len(text) <= MAX_KEY_CHARACTERS:
            raise ValueError(
                f"found a key of {len(text)} characters; expected {MIN_KEY_CHARACTERS} to "
                f"{MAX_KEY_CHARACTERS:,} letters, digits and signs without spaces, such as "
                "`openssl rand -hex 32` makes"
            )
        return key

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_environment(cls, values: dict[str, Any]) -> dict[str, Any]:
        known = {f"{ENV_PREFIX}{name}".upper() for name in cls.model_fields}
        given = {name for name in os.environ if name.upper().startswith(ENV_PREFIX)}
        if unknown := sorted(name for name in given if name.upper() not in known):
            raise ValueError(f"unknown environment variable {', '.join(unknown)}")
        return values

    @model_validator(mode="after")
    def _refuse_open_doors(self) -> Self:
        if self.needs_key_to_read and self.api_key is None and not self.insecure:
            raise ValueError(
                f"{self.host} can be reached from other machines and no key is set; "
                "set one with --api-key-file FILE or LOADSCOPE_API_KEY, "
                "or add --insecure if anybody may change the weights"
            )
        return self


def make_settings(**given: Any) -> Settings:
    """Settings from the command line over the environment; None means not given.

    Raises ValueError with one line that names what is wrong.
    """
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{name}: {message}" if name else message) from None

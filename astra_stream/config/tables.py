"""The tables of a run file; the sentence under a field is its help.

Parameters of plugins are not here: they are keyword-only parameters of what ``use`` names.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    field_validator,
)

NAME = re.compile(r"[a-z0-9-]+")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
BUCKET = re.compile(r"s3://[^/@]+(/|$)")
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(value: object) -> float:
    """Seconds of a duration's text, such as ``90s``.

    Raises:
        ValueError: It is none, or none above 0.
    """
    match = DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None or not float(match[1]):
        raise ValueError(f"must be a duration such as '90s': got {value!r}. Units: ms, s, m, h.")
    return float(match[1]) * SECONDS[match[2]]


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError(
            f"must be lower-case letters, digits and '-': got {value!r}. Topics are named after it."
        )
    return value


def _variable(value: str) -> str:
    if not VARIABLE.fullmatch(value):
        raise ValueError(
            "must be the name of an environment variable: got something else. "
            "Put the secret into a variable and name it here."
        )
    return value


def _bucket(value: str) -> str:
    if not BUCKET.match(value):
        raise ValueError("must be s3://bucket/prefix: got something else. Correct it.")
    return value


def _count_or_share(value: float) -> float:
    if value < 0 or (value >= 1 and not value.is_integer()):
        raise ValueError(
            f"must be a count or a share below 1: got {value}. Use 500 for texts, 0.1 for a tenth."
        )
    return int(value) if value >= 1 else value


def _beside_the_file(value: Path, info: ValidationInfo) -> Path:
    directory = (info.context or {}).get("directory")
    return value if directory is None else Path(directory, value.expanduser()).resolve()


def _using(use: str) -> BeforeValidator:
    """Let a plugin table leave out ``use`` where it is the field's default."""

    def fill(value: object) -> object:
        return {"use": use, **value} if isinstance(value, dict) else value

    return BeforeValidator(fill)


Name = Annotated[str, AfterValidator(_name)]
Variable = Annotated[str, AfterValidator(_variable)]
LocalPath = Annotated[Path, AfterValidator(_beside_the_file)]
Duration = Annotated[
    float, BeforeValidator(seconds), PlainSerializer(lambda value: f"{value!r}s", return_type=str)
]


class Table(BaseModel):
    """A table of the run file: frozen, and a key that is not a field is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class PluginConfig(Table):
    """``{ use = "short name or module:name", parameter = value, ... }``."""

    model_config = ConfigDict(extra="allow")

    use: str
    """Short name of a built-in, or module:name of your own."""

    @property
    def parameters(self) -> dict[str, Any]:
        """What stands beside ``use``."""
        return dict(self.model_extra or {})


class PromptSourceConfig(PluginConfig):
    """A plugin table that also says how many prompts are kept from training."""

    held_out: Annotated[float, AfterValidator(_count_or_share)] = 0
    """Distinct texts kept from training, for evaluation: a count, or a share below 1."""


class KafkaConfig(Table):
    """Where the broker is; absent means the embedded one."""

    bootstrap: str
    """Comma-separated host:port of some brokers."""
    security: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """How clients reach the brokers."""
    mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = "SCRAM-SHA-512"
    """How clients prove who they are, with SASL."""
    username_env: Variable | None = None
    """Environment variable that holds the user name."""
    password_env: Variable | None = None
    """Environment variable that holds the password."""
    ca: LocalPath | None = None
    """File with the certificates to trust; absent trusts the system's."""
    deadline: Duration = 30.0
    """How long a call to the brokers may take, retries included, before its service gives up."""


class StoreConfig(Table):
    """Where weights and checkpoints lie; absent means the embedded store."""

    url: Annotated[str, AfterValidator(_bucket)]
    """s3://bucket/prefix; the run's name is added."""
    endpoint: str | None = None
    """http(s) address of a server other than AWS."""
    region: str = "us-east-1"
    """Region of the bucket."""
    access_key_env: Variable = "AWS_ACCESS_KEY_ID"
    """Environment variable that holds the access key."""
    secret_key_env: Variable = "AWS_SECRET_ACCESS_KEY"
    """Environment variable that holds the secret key."""
    deadline: Duration = 30.0
    """How long a call to the store is tried again before its service gives up."""
    checksums: Literal["when_supported", "when_required"] = "when_supported"
    """when_required leaves the server's checksums of its answers aside, where they are wrong."""


class LocalConfig(Table):
    """What this machine gives to a run that starts everything itself."""

    java: LocalPath | None = None
    """A java of version 17 or newer; absent takes the installed wheel's."""
    cores: int | None = Field(default=None, ge=1)
    """Cores to share among the services; absent takes those this process may use."""
    state: Literal["memory", "disk"] = "memory"
    """Where the pipeline's state is: open groups, and what its stages remember."""


class PromptsConfig(Table):
    """Which prompts there are and which come next."""

    source: PromptSourceConfig
    """Where prompts come from."""
    select: Annotated[PluginConfig, _using("shuffled")] = PluginConfig(use="shuffled")
    """Which prompt comes next."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes over the training prompts; absent repeats them until the last step."""


class SamplingConfig(Table):
    """How tokens are drawn while training; the log-probabilities must describe the draw."""

    temperature: float = Field(default=1.0, allow_inf_nan=False)
    """Divides the logits."""
    top_p: float = 1.0
    """Nucleus mass; only 1.0, which keeps all, can be trained on."""
    top_k: int = 0
    """Tokens kept; only 0, which keeps all, can be trained on."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Most tokens that a turn may add."""
    stop: tuple[str, ...] = ()
    """Texts that end a turn."""

    @field_validator("temperature")
    @classmethod
    def _temperature_is_positive(cls, value: float) -> float:
        if value <= 0:
            raise ValueError(
                f"must be above 0 while training: got {value}. "
                "Use temperature = 1.0; greedy sampling is for evaluation."
            )
        return value

    @field_validator("top_p")
    @classmethod
    def _top_p_is_off(cls, value: float) -> float:
        if value != 1.0:
            raise ValueError(
                f"must be 1.0 while training: got {value}. "
                "Remove it: log-probabilities are of the whole vocabulary."
            )
        return value

    @field_validator("top_k")
    @classmethod
    def _top_k_is_off(cls, value: int) -> int:
        if value != 0:
            raise ValueError(
                f"must be 0 while training: got {value}. "
                "Remove it: log-probabilities are of the whole vocabulary."
            )
        return value


class RolloutConfig(Table):
    """How episodes are played."""

    engine: Annotated[PluginConfig, _using("transformers")] = PluginConfig(use="transformers")
    """What generates."""
    environment: PluginConfig
    """What judges."""
    sampling: SamplingConfig = SamplingConfig()
    """How tokens are drawn."""
    group_size: int = Field(default=8, ge=1)
    """Samples of one prompt, compared with one another."""
    workers: int = Field(default=1, ge=1)
    """Rollout workers that a run on this machine starts."""
    episode_timeout: Duration = 600.0
    """Longest an episode may take; seconds once read."""
    max_attempts: int = Field(default=3, ge=1)
    """Times a sample is played before its failure stands."""
    max_deliveries: int = Field(default=3, ge=1)
    """Times a request that ends its worker is played alone before it is recorded as failed."""
    grace: Duration = 15.0
    """What a worker may take to finish episodes once told to stop; seconds once read."""


class BatchConfig(Table):
    """What one version is trained on."""

    groups: int = Field(ge=1)
    """Groups in a batch."""
    order: Literal["edf", "fifo"] = "edf"
    """Which groups first: edf, the earliest deadline, or fifo, the earliest complete."""
    row_tokens: int = Field(default=2048, ge=2)
    """Length of a packed row; the longest sample must fit."""
    on_slow: Literal["wait", "expire"] = "wait"
    """Wait for a slow group until its deadline, or let it expire by staleness."""
    max_drops: int = Field(default=10, ge=1)
    """Groups dropped without a batch before on_no_signal acts, in batches' worth of groups."""
    on_no_signal: Literal["stop", "short_batch"] = "stop"
    """When nearly every group is dropped: stop the run, or train on the few there are."""
    last: Literal["train", "drop"] = "train"
    """What becomes of the short remainder at the end."""


class OptimizerConfig(Table):
    """AdamW over fp32 master weights."""

    lr: float = Field(default=1e-6, ge=0, allow_inf_nan=False)
    """Learning rate after the warm-up."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of the first and the second moment."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Decoupled weight decay."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps in which the learning rate rises linearly."""
    updates_per_batch: int = Field(default=1, ge=1)
    """Optimizer steps on one batch; together they make one version."""

    @field_validator("betas")
    @classmethod
    def _betas_are_decays(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in value):
            raise ValueError(f"must be at least 0 and below 1: got {list(value)}. Use [0.9, 0.95].")
        return value


class CheckpointConfig(Table):
    """How the trainer's own state is kept."""

    every: int = Field(default=50, ge=1)
    """Versions between checkpoints."""


class TrainerConfig(Table):
    """How a step is computed; none of it changes what is computed."""

    tokens_per_micro_batch: int = Field(default=16384, ge=1)
    """Tokens, padding included, in one forward pass: lower it when memory runs out."""


class PolicyConfig(Table):
    """One set of weights under training."""

    model: LocalPath
    """Directory of the start: a Hugging Face model with its tokenizer."""
    reference: LocalPath | None = None
    """Directory of a frozen model for a loss with a divergence term; absent means none."""
    max_staleness: int = Field(default=2, ge=0)
    """Versions that a sample may be behind the one it trains; 0 is strictly on-policy."""
    pipeline: tuple[PluginConfig, ...] = ()
    """Group processors, in order."""
    batch: BatchConfig
    """What one version is trained on."""
    advantage: Annotated[PluginConfig, _using("group_relative")] = PluginConfig(
        use="group_relative"
    )
    """Credit from comparison within a group."""
    loss: Annotated[PluginConfig, _using("grpo")] = PluginConfig(use="grpo")
    """What the step minimises."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """How weights move."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """How the trainer's own state is kept."""
    trainer: TrainerConfig = TrainerConfig()
    """How a step is computed."""


class EvaluateConfig(Table):
    """Held-out prompts, played while training goes on."""

    every: int = Field(default=10, ge=1)
    """Versions between evaluations; the first and the last version are always evaluated."""
    samples: int = Field(default=1, ge=1)
    """Samples per prompt."""
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Temperature of the samples; 0 is greedy."""
    prompts: int | None = Field(default=None, ge=1)
    """Held-out prompts used; absent takes all."""


class RunConfig(Table):
    """A run file."""

    run: Name
    """Name of the run: lower-case letters, digits and '-'; topics start with it."""
    seed: int = Field(default=0, ge=0)
    """Seed of every draw."""
    steps: int = Field(ge=1)
    """Versions to make."""
    repeatable: bool = False
    """One worker and one slot, so that a second run writes the same bytes; slow."""
    directory: LocalPath = Field(default=Path("."), validate_default=True)
    """Where relative paths and your own modules are looked for; absent is beside the run file."""
    kafka: KafkaConfig | None = None
    """Where the broker is; absent means the embedded one."""
    store: StoreConfig | None = None
    """Where weights and checkpoints lie; absent means the embedded store."""
    local: LocalConfig = LocalConfig()
    """What this machine gives to the run."""
    prompts: PromptsConfig
    """Which prompts there are and which come next."""
    rollout: RolloutConfig
    """How episodes are played."""
    policies: dict[Name, PolicyConfig]
    """Sets of weights under training, by name."""
    evaluate: EvaluateConfig | None = None
    """Evaluation on held-out prompts; absent means none."""

    @field_validator("policies")
    @classmethod
    def _one_policy(cls, value: dict[str, PolicyConfig]) -> dict[str, PolicyConfig]:
        if len(value) != 1:
            raise ValueError(
                f"must have exactly one entry: got {sorted(value)}. One policy is supported."
            )
        return value

    @property
    def policy_name(self) -> str:
        """Name of the only policy."""
        return next(iter(self.policies))

    @property
    def policy(self) -> PolicyConfig:
        """The only policy."""
        return self.policies[self.policy_name]

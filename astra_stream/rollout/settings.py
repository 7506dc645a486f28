"""What the run file says of rollout workers."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """What the run file says of a worker."""

    policy: str
    requests_topic: str
    trajectories_topic: str
    evaluation_trajectories_topic: str
    outcomes_topic: str
    dead_letters_topic: str
    weights_topic: str
    closes_on_topic: str
    """Topic whose record marked final ends the run: evaluations, or weights without any."""
    group: str
    """Consumer group of the pool."""
    slot: int = 0
    """Number of this worker; part of its transactional id."""
    slots: int = 64
    """Episodes at once."""
    max_attempts: int = 3
    max_deliveries: int = 3
    """Starts alone after which a request that ends processes is given up."""
    gather_s: float = 0.2
    """Seconds for which a finished request may wait for others, to share their transaction; it
    does not wait where no other is open."""
    grace_s: float = 15.0
    """After SIGTERM, seconds in which running episodes may still finish."""

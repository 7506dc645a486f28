"""Names in the log: topics, consumer groups and transactional ids of one run; pure text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopicNames:
    """Names of a run's topics; everything of a run starts with ``<run>.``, dot included."""

    run: str
    """Name of the run, ``[a-z0-9-]+``."""

    @property
    def prefix(self) -> str:
        """What every name of the run starts with."""
        return f"{self.run}."

    @property
    def prompts(self) -> str:
        """Tasks, by prompt id."""
        return f"{self.run}.prompts"

    def requests(self, pool: str = "main") -> str:
        """Orders for the workers of a pool."""
        return f"{self.run}.requests.{pool}"

    def trajectories(self, policy: str) -> str:
        """What episodes leave for a policy."""
        return f"{self.run}.trajectories.{policy}"

    def evaluation_trajectories(self, policy: str) -> str:
        """What evaluation episodes leave for a policy."""
        return f"{self.run}.evaluation-trajectories.{policy}"

    def groups(self, policy: str) -> str:
        """Groups that a pipeline kept."""
        return f"{self.run}.groups.{policy}"

    def batches(self, policy: str) -> str:
        """What each version is trained on, in order."""
        return f"{self.run}.batches.{policy}"

    def weights(self, policy: str) -> str:
        """Announcements of versions, in order."""
        return f"{self.run}.weights.{policy}"

    @property
    def outcomes(self) -> str:
        """What became of each group."""
        return f"{self.run}.outcomes"

    @property
    def evaluations(self) -> str:
        """Scores of versions."""
        return f"{self.run}.evaluations"

    @property
    def metrics(self) -> str:
        """Numbers over time."""
        return f"{self.run}.metrics"

    @property
    def dead_letters(self) -> str:
        """Records that could not be processed."""
        return f"{self.run}.dead-letters"

    def group(self, role: str, name: str = "") -> str:
        """Consumer group, and transactional id, of a role: ``<run>.<role>[.<name>]``."""
        return f"{self.run}.{role}.{name}" if name else f"{self.run}.{role}"

    def changelog(self, group: str, state: str) -> str:
        """Topic that a processor restores its state from.

        Args:
            group: The processor's consumer group, which starts with the run's prefix.
            state: Name of the state.
        """
        return f"{group}.{state}.changelog"

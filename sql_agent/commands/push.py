"""Uploads the newest model or adapter of a run to the Hugging Face hub: `agentgrpo push RUN_DIR ORG/NAME`.

It uploads weights, configs, tokenizer, trained_on.json, the curve, and the model card that `agentgrpo report` writes.
Edit RUN_DIR/model_card.md before, and your text is uploaded. It prints all files first. A new repository is private
unless --public is given. Log in once with `hf auth login`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from agentgrpo.checks import UsageError
from agentgrpo.commands import failed
from agentgrpo.flags import described_parser
from agentgrpo.hub import HUB_ID, first_line, go_offline, online, user_forbids
from agentgrpo.json_text import parse_json
from agentgrpo.printed_commands import agentgrpo_command, program_command
from sql_agent.commands.report import write_page
from sql_agent.report.card import CARD, CURVE, NAME, REPO, is_edited, license_of, read_card, render_card, write_card
from sql_agent.report.public import base_of, hub_id, public_name
from sql_agent.report.reading import ADAPTER_CONFIG, Run, read_run, with_start

WEIGHTS = ("*.safetensors",)
FILES = (
    *WEIGHTS,
    *("*.safetensors.index.json", "config.json", "generation_config.json", "adapter_config.json", "tokenizer*"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.jinja", "*.model"),
    *("trained_on.json", "reward_model.json"),
)
"""What is uploaded of a model's folder; in some runs it also holds logs and checkpoints."""
LOG_IN = f"log in with `{program_command('hf', 'auth', 'login')}`, with a token that may write"


def main(argv: Sequence[str] | None = None) -> int:
    parser = described_parser("agentgrpo push", __doc__)
    parser.add_argument("run_dir", type=Path, help="the run's folder (--run-dir of the training command)")
    parser.add_argument("repo", metavar="ORG/NAME", help="the repository, which is created if it does not exist")
    visibility = parser.add_mutually_exclusive_group()
    visibility.add_argument("--private", action="store_true", help="only you and your organisation see it (default)")
    visibility.add_argument("--public", action="store_true", help="everybody sees a new repository")
    args = parser.parse_args(argv)
    if "/" not in args.repo or not HUB_ID.fullmatch(args.repo):
        parser.error(f"{args.repo} is no name of a repository; expected ORG/NAME")
    go_offline()
    try:
        run = with_start(read_run(args.run_dir))
        with tempfile.TemporaryDirectory() as folder:
            push(run, args.repo, Path(folder), asked="public" if args.public else "private" if args.private else None)
    except UsageError as error:
        return failed(error)
    except ValueError as error:  # no folder of a run
        return failed(error, 2)
    return 0


def push(run: Run, repo: str, folder: Path, asked: str | None) -> None:
    """
    Args:
        folder: an empty one, in which the upload is put together.
        asked: public or private; None: a new repository is private, and an old one stays as it is.
    Raises:
        UsageError: there is nothing to upload, or the hub refuses it; the message says what to do.
    """
    from huggingface_hub import HfApi, constants

    files = model_files(run)
    if user_forbids():
        raise UsageError("HF_HUB_OFFLINE forbids to upload anything; unset it")
    with _answered(repo), online():
        api = HfApi()
        is_new, visibility = visibility_of(api, repo, asked)
        gather(run, files, folder, repo, api)
        print(f"to {constants.ENDPOINT}/{repo}, a {visibility} repository{', which is made' if is_new else ''}:")
        for file in sorted(folder.iterdir()):
            print(f"  {file.stat().st_size:>13,}  {file.name}")
        for line in notes(run):
            print(line)
        if is_new:
            api.create_repo(repo, private=visibility == "private")
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message=f"{run.kind}, step {run.step}")
    print(f"uploaded: {constants.ENDPOINT}/{repo}")


def model_files(run: Run) -> list[Path]:
    """Raises UsageError: the run has no model, or one without weights."""
    if run.model is None:
        raise UsageError(f"{run.folder} holds no model yet; a run writes one with its first checkpoint or at its end")
    files = [path for path in run.model.iterdir() if any(fnmatch(path.name, kind) for kind in FILES)]
    if not any(fnmatch(file.name, kind) for file in files for kind in WEIGHTS):
        merge = agentgrpo_command("merge", "--checkpoint", run.folder, "--output", "MERGED")
        raise UsageError(f"{run.model} holds no weights (*.safetensors); make them with `{merge}`")
    return files


def visibility_of(api: Any, repo: str, asked: str | None) -> tuple[bool, str]:
    """Whether the repository is new, and who sees it.

    Raises:
        UsageError: it is there, and is not what was asked for.
    """
    from huggingface_hub.errors import RepositoryNotFoundError

    api.whoami()  # a repository that this login does not see looks like a new one
    try:
        there = "private" if api.repo_info(repo).private else "public"
    except RepositoryNotFoundError:
        return True, asked or "private"
    if asked not in (None, there):
        raise UsageError(f"{repo} is there and is {there}; change that in its settings on the hub, or name another")
    return False, there


def gather(run: Run, files: Sequence[Path], folder: Path, repo: str, api: Any) -> None:
    """Put what is uploaded into a folder; names of this machine's files and folders lose their path."""
    from huggingface_hub import ModelCard

    for file in files:
        target = folder / file.name
        if file.suffix == ".json" and file.name not in ("tokenizer.json", "vocab.json"):
            target.write_text(json.dumps(without_paths(parse_json(file.read_text("utf-8"))), indent=2) + "\n", "utf-8")
        else:
            target.symlink_to(file.resolve())
    write_page(run)  # and the curve
    shutil.copyfile(run.folder / CURVE, folder / CURVE)
    write_card(run)
    text = read_card(run) if is_edited(run) else render_card(run, license_on_hub(run, api))
    text = text.replace(REPO, repo).replace(NAME, repo.rpartition("/")[2])
    try:
        ModelCard(text)
    except (ValueError, yaml.YAMLError) as error:
        what = "what stands between its first two --- is no YAML of a card"
        raise UsageError(f"{run.folder / CARD}: {what} ({first_line(error)}); correct it, or remove the file") from None
    (folder / "README.md").write_text(text, "utf-8")


def without_paths(value: Any) -> Any:
    """A JSON value in which each absolute path, or path of a file that is there, is a plain name."""
    if isinstance(value, dict):
        return {name: without_paths(held) for name, held in value.items()}
    if isinstance(value, list):
        return [without_paths(held) for held in value]
    if not isinstance(value, str) or "/" not in value or "\n" in value:
        return value
    return public_name(value) if value.startswith("/") or Path(value.partition(":")[0]).exists() else value


def license_on_hub(run: Run, api: Any) -> str | None:
    """What the base says: its README.md here, or else its card on the hub."""
    from huggingface_hub.errors import HfHubHTTPError

    base = base_of(run)
    found, id = license_of(base), hub_id(base)
    if found or id is None:
        return found
    try:
        card = api.model_info(id).card_data
    except HfHubHTTPError:  # the base is private or gone, and its licence is unknown
        return None
    return card.license if card else None


def notes(run: Run) -> Iterator[str]:
    yield f"card: {run.folder / CARD}, {'as you edited it' if is_edited(run) else 'as `agentgrpo report` writes it'}"
    if run.state == "running":
        yield f"note: the run is still running; this is its model after step {run.step} or earlier"
    base = base_of(run)
    if run.model and (run.model / ADAPTER_CONFIG).is_file() and hub_id(base) is None:
        merge = agentgrpo_command("merge", "--adapter", run.model, "--output", "MERGED")
        yield (
            f"note: the adapter's base is {public_name(base)}, a folder of this machine, and nobody else can load the "
            f"adapter without it; `{merge}` makes a whole model, and `hf upload` uploads that"
        )


@contextmanager
def _answered(repo: str) -> Iterator[None]:
    import httpx
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    try:
        yield
    except LocalTokenNotFoundError:
        raise UsageError(f"nobody is logged in at {constants.ENDPOINT}; {LOG_IN}") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise UsageError(f"{constants.ENDPOINT} refuses this login for {repo} ({status}); {LOG_IN} there") from None
        raise UsageError(f"{constants.ENDPOINT} refused the upload ({first_line(error)}); try again later") from None
    except httpx.HTTPError as error:
        said = f"{type(error).__name__}: {first_line(error)}"
        raise UsageError(f"{constants.ENDPOINT} does not answer ({said}); look at the network") from None

"""Serves scores: `agentgrpo reward serve --model ./merged_model`, then `POST /score`.

It listens on this machine only, unless a token is given. It answers at once, and is ready when the model is loaded and
its warm-up scores matched. After SIGTERM it answers the requests that it has accepted and exits with 0. The parts of
the service are in `reward_model/service`; doc/guides/reward_model.md shows requests and answers.
"""

if __name__ == "__main__":
    from agentgrpo.commands import run_module

    run_module("reward_model.inference_api")

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentgrpo.checks import require
from agentgrpo.flags import DEVICES, Parser, positive, torch_device
from agentgrpo.hub import TRAIN, go_offline, model_folder
from agentgrpo.machine import git_commit, is_loopback, port_number
from reward_model.datatypes import TOKEN_VARIABLE
from reward_model.service.request_queue import RequestQueue
from reward_model.service.schemas import MAX_ITEMS

if TYPE_CHECKING:
    from reward_model.scorer import Scorer
    from reward_model.service.app import Service
    from reward_model.service.batch_scorer import BatchScorer

log = logging.getLogger("reward_model.inference_api")

DRAIN_S = 30.0
MAX_CONNECTIONS = 2048


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(arguments)
    try:
        token = read_token(args.host, args.token_file)
        go_offline()
        args.model = model_folder(args.model, otherwise=TRAIN)
        require(scoring_model=args.model)
    except ValueError as error:
        parser.error(str(error))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Threads that wait actively for each other stop while another process has their core: beside a busy process the
    # service was 20 times slower (measured). torch reads this variable at import, so it is set before.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return serve_scores(args, token)


def make_parser() -> Parser:
    parser = Parser(prog="agentgrpo reward serve", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--model",
        "--model-path",
        type=Path,
        required=True,
        help="a merged model, its folder or ORG/NAME, or an adapter's folder",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help=f"address to listen on, default %(default)s; others need {TOKEN_VARIABLE}"
    )
    parser.add_argument(
        "--port", type=port_number, default=8008, help="default %(default)s; 0 takes a free one and logs it"
    )
    parser.add_argument(
        "--token-file", type=Path, help=f"file with the bearer token of clients; or set {TOKEN_VARIABLE}"
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        type=torch_device,
        metavar=DEVICES,
        help="default auto: a GPU if there is one",
    )
    parser.add_argument(
        "--threads",
        type=_at_least(1),
        help="CPU threads of the model; default: one per core",
    )
    parser.add_argument(
        "--max-queue",
        type=_at_least(MAX_ITEMS),
        default=512,
        help=f"most conversations that wait, default %(default)s; at least {MAX_ITEMS}, as many as a request may hold",
    )
    parser.add_argument("--timeout-s", type=positive, default=30.0, help="deadline of a request, default %(default)s")
    return parser


def read_token(host: str, token_file: Path | None) -> str | None:
    """None if clients need no token.

    Raises:
        ValueError: the host is not loopback and no token is given, the file is empty, or no header can hold the token.
    """
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if token_file:
        token = token_file.read_text(encoding="utf-8", errors="replace").strip() if token_file.is_file() else ""
        if not token:
            raise ValueError(
                f"--token-file {token_file}: no such file, or nothing in it; expected one line with the token"
            )
    if not token.isascii() or not token.isprintable():
        raise ValueError("the token holds characters that a header cannot hold; expected printable ASCII")
    if not token and not is_loopback(host):
        raise ValueError(
            f"--host {host} can be reached from other machines, which needs a token: set {TOKEN_VARIABLE} or give "
            "--token-file; 127.0.0.1 needs none"
        )
    return token or None


def _at_least(least: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text}: expected {least} or more")
        return int(text)

    return whole_number


def check_scoring_model(path: Path) -> None:
    """Raises ValueError: the folder holds neither a model nor an adapter. It is called before torch is imported."""
    if not any((path / name).is_file() for name in ("config.json", "adapter_config.json")):
        raise ValueError(
            f"--model {path}: no config.json or adapter_config.json there; expected what "
            "agentgrpo reward train or agentgrpo reward merge wrote"
        )


# A thread may keep Python's lock this long while others wait. With Python's default of 5 ms, reading large bodies
# starves the workers, which take the lock again after each operation of the model.
SWITCH_S = 0.0005


def serve_scores(args: argparse.Namespace, token: str | None) -> int:
    """Exit code, once asked to end."""
    sys.setswitchinterval(SWITCH_S)
    import uvicorn

    from reward_model.service.app import Service, make_app
    from reward_model.service.middleware import CountedHttpProtocol, RequestMiddleware

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:  # uvicorn's own version would stop listening at once
            yield

    service = Service(args.model.resolve(), commit=git_commit() or "unknown", deadline_s=args.timeout_s)
    config = uvicorn.Config(
        RequestMiddleware(make_app(service), token=token),
        host=args.host,
        port=args.port,
        http=CountedHttpProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=5,
    )
    try:
        listening = config.bind_socket()
    except SystemExit:  # uvicorn has logged the reason, but not the address
        log.error("cannot listen on %s:%d; end what listens there, or give another --port", args.host, args.port)
        return 1
    server = Server(config)

    async def run() -> int:
        loop = asyncio.get_running_loop()
        ending = asyncio.Event()
        for sign in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(sign) != signal.SIG_IGN:  # a shell ignores SIGINT for background jobs
                loop.add_signal_handler(sign, ending.set)
        serving = asyncio.create_task(server.serve([listening]))
        loading = load_in_thread(service, args, ending)
        waiting = asyncio.create_task(ending.wait())
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        failed = loading.done() and not loading.result()
        service.status = "draining"
        if service.queue:
            log.info("ending: answering accepted requests, for %g s at most", DRAIN_S)
            if not await service.queue.drain(DRAIN_S):
                log.error("not every accepted request was answered within %g s", DRAIN_S)
                failed = True
            service.queue.close()
        server.should_exit = True
        await serving
        return int(failed)

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        code = runner.run(run())
    if service.scorer is None or code:  # a thread may still load or score, and nobody waits for it
        logging.shutdown()
        os._exit(code)
    return code


def load_in_thread(service: "Service", args: argparse.Namespace, ending: asyncio.Event) -> asyncio.Future[bool]:
    loop = asyncio.get_running_loop()
    loaded: asyncio.Future[bool] = loop.create_future()

    def work() -> None:
        try:
            from reward_model.service.warm_up import load_warm

            threads = args.threads or os.cpu_count() or 1
            loop.call_soon_threadsafe(begin, *load_warm(service.model_path, device=args.device, threads=threads))
        except Exception as error:  # nobody waits for this thread: what it raises would be lost
            log.error("the model cannot be used: %s: %s", type(error).__name__, error)
            loop.call_soon_threadsafe(give_up)

    def begin(scorer: "Scorer", batch_scorer: "BatchScorer") -> None:
        if ending.is_set():
            return
        gc.collect()
        gc.freeze()  # later collections skip the objects of torch and the model, which took 0.2 s without answers
        service.ready(scorer, RequestQueue(batch_scorer, max_queue=args.max_queue))
        loaded.set_result(True)
        log.info("ready: %s, %d tokens a conversation at most", service.model_path.name, scorer.max_length)

    def give_up() -> None:
        loaded.set_result(False)
        ending.set()

    threading.Thread(target=work, name="load", daemon=True).start()
    return loaded

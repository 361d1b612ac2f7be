"""The gateway `smg` from PyPI, unmodified, in front of a coordinator's gRPC port."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from common.config_loader import child_environment

SMG = Path(sys.executable).with_name("smg")
LOOPBACK = "127.0.0.1"
START_SECONDS = 60.0
POLL_SECONDS = 0.05
UNREACHABLE_HUB = {"HF_ENDPOINT": f"http://{LOOPBACK}:9"}
"""Whatever the gateway needs of a model it has from the coordinator."""


@contextmanager
def smg_gateway(grpc_address: str, *flags: str, log: Path) -> Iterator[str]:
    """Start a gateway that has one worker, the coordinator; yields its URL and kills it in the end."""
    port, metrics_port = _free_ports(2)
    arguments = ["--host", LOOPBACK, "--port", str(port), "--backend", "vllm"]
    arguments += ["--prometheus-host", LOOPBACK, "--prometheus-port", str(metrics_port)]
    arguments += ["--policy", "round_robin", "--worker-urls", f"grpc://{grpc_address}"]
    arguments += ["--worker-startup-check-interval", "1", *flags]
    with log.open("w") as written:
        process = subprocess.Popen(
            [SMG, "launch", *arguments],
            env=child_environment() | UNREACHABLE_HUB,
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    url = f"http://{LOOPBACK}:{port}"
    try:
        _wait_until_ready(url, process, log)
        yield url
    finally:
        # Asked to end it would keep its port open for seconds, for load balancers to notice.
        process.kill()
        process.wait()


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    pause = threading.Event()
    while not _answers(url):
        assert process.poll() is None, f"it ended instead: {log.read_text()[-2000:]}"
        assert time.monotonic() < deadline, f"no answer yet: {log.read_text()[-2000:]}"
        pause.wait(POLL_SECONDS)


def _answers(url: str) -> bool:
    """Whether a request is answered; a model is listed before its tokenizer is read."""
    try:
        models = httpx.get(f"{url}/v1/models")
        if models.status_code != httpx.codes.OK or not models.json()["data"]:
            return False
        body = {"model": models.json()["data"][0]["id"], "prompt": "x", "max_tokens": 1}
        return httpx.post(f"{url}/v1/completions", json=body).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has now; the gateway takes none without a number."""
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports = [taken.getsockname()[1] for taken in sockets]
    for taken in sockets:
        taken.close()
    return ports

"""The ZMQ sockets of a process, and the thread that receives, opens and closes.

One PULL socket receives from all peers; each link owns a PUSH socket to one peer. Who sends does so
itself where the socket takes the message at once, as a change of threads costs more than the call;
what it does not take waits for the thread. Knows nothing of steps, tensors or generations.
"""

import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress

import zmq

from common.config import join_address
from common.errors import ConfigError, Unavailable
from common.logs import get_logger

logger = get_logger(__name__)

Parts = Sequence[bytes | memoryview]
Action = Callable[[], None]


def resolve(host: str, port: int) -> tuple[str, bool]:
    """The ZMQ endpoint of a host name or address, IPv4 preferred, and whether it is IPv6.

    Both ends prefer the same family, so a name with addresses of both kinds means one of them.
    Raises OSError when the name is unknown.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, address = min(found, key=lambda each: each[0] is not socket.AF_INET)
    is_ipv6 = family is socket.AF_INET6
    return f"tcp://{join_address(str(address[0]), port)}", is_ipv6


class Link:
    """The way to one peer: what waits to be sent, and the socket once the thread has opened it.

    The socket takes at most `capacity` messages that the peer has not; all others wait here. Whoever
    holds `lock` may use the socket; the thread polls it only while messages wait.
    """

    def __init__(self, host: str, port: int, *, capacity: int) -> None:
        self.target, self.is_ipv6 = resolve(host, port)
        self.capacity = capacity
        self.lock = threading.Lock()
        self.waiting: deque[Parts] = deque()
        self.is_closed = False
        self.socket: zmq.Socket[bytes] | None = None


class ZmqTransport:
    """Owns the context, the sockets and the thread; `close` ends all three.

    `on_message` is called in the thread with the frames of each message; `on_failure` once, when
    the thread ends by an error, after which nothing is sent or received any more.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        max_part_bytes: int,
        on_message: Callable[[list[zmq.Frame]], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._on_message = on_message
        self._on_failure = on_failure
        self._context = zmq.Context()
        try:
            self._pull = self._bind(host, port, max_part_bytes)
        except (OSError, zmq.ZMQError) as error:
            self._context.destroy(linger=0)
            raise ConfigError(
                f"cannot bind the tensor socket to {join_address(host, port)}: {error.strerror}"
            ) from error
        endpoint = self._pull.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        self.port = int(endpoint.decode().rpartition(":")[2])
        self._lock = threading.Lock()
        self._actions: deque[tuple[Action, Future[None]]] = deque()
        self._has_ended = False
        self._is_stopping = False
        self._links: dict[zmq.Socket[bytes], Link] = {}
        self._waker, self._woken = self._wake_pair()
        self._poller = zmq.Poller()
        self._thread = threading.Thread(target=self._run, name="tensor transport", daemon=True)
        self._thread.start()

    def _bind(self, host: str, port: int, max_part_bytes: int) -> "zmq.Socket[bytes]":
        target, is_ipv6 = resolve(host, port)
        pull = self._context.socket(zmq.PULL)
        pull.setsockopt(zmq.LINGER, 0)
        pull.setsockopt(zmq.IPV6, is_ipv6)
        # libzmq drops the connection before it allocates a part beyond this.
        pull.setsockopt(zmq.MAXMSGSIZE, max_part_bytes)
        pull.bind(target)
        return pull

    def _wake_pair(self) -> "tuple[zmq.Socket[bytes], zmq.Socket[bytes]]":
        # Wake-ups carry nothing, so their number needs no bound, and sending one never blocks.
        ends = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        for end in ends:
            end.setsockopt(zmq.LINGER, 0)
            end.set_hwm(0)
        ends[0].bind("inproc://wake")
        ends[1].connect("inproc://wake")
        return ends

    # Called from other threads.

    def open(self, link: Link) -> None:
        """Start to connect a link; what is sent before it is connected waits.

        Raises Unavailable when it cannot even be tried; the thread and other links go on.
        """
        opened = self._post(lambda: self._open(link))
        with suppress(CancelledError):
            opened.result()

    def send(self, link: Link, parts: Parts) -> None:
        """Send a message, or queue it behind those waiting; its buffers are never copied here."""
        with link.lock:
            link.waiting.append(parts)
            # The first of several that wait has told the thread, and so does who opens the link.
            is_told = link.socket is None or len(link.waiting) > 1
            if is_told or _drain(link):
                return
        self._post(lambda: self._flush(link))

    def close_links(self, links: Sequence[Link]) -> None:
        """Close links, drop what waits on them, and return when that is done."""
        for link in links:
            link.is_closed = True
        closed = self._post(lambda: self._close_links(links))
        with suppress(CancelledError):
            closed.result()

    def close(self) -> None:
        """End the thread and free every socket and the context; a second call does nothing."""
        self._post(self._stop)
        self._thread.join()
        self._waker.close()
        self._context.term()

    def _post(self, action: Action) -> "Future[None]":
        done: Future[None] = Future()
        with self._lock:
            if self._has_ended:
                done.cancel()
            else:
                self._actions.append((action, done))
                self._waker.send(b"", zmq.NOBLOCK)
        return done

    # The thread.

    def _run(self) -> None:
        try:
            self._poller.register(self._woken, zmq.POLLIN)
            self._poller.register(self._pull, zmq.POLLIN)
            while not self._is_stopping:
                for ready, _ in self._poller.poll():
                    self._serve(ready)
        except Exception as error:
            logger.exception("tensor transport failed")
            self._on_failure(error)
        finally:
            self._free()

    def _serve(self, ready: "zmq.Socket[bytes] | int") -> None:
        if ready is self._woken:
            self._woken.recv()
            self._act()
        elif ready is self._pull:
            self._on_message(self._pull.recv_multipart(copy=False))
        # An action of the same round may have closed the socket.
        elif isinstance(ready, zmq.Socket) and ready in self._links:
            self._flush(self._links[ready])

    def _act(self) -> None:
        with self._lock:
            action, done = self._actions.popleft()
        try:
            action()
        except Unavailable as refusal:
            done.set_exception(refusal)
        else:
            done.set_result(None)

    def _open(self, link: Link) -> None:
        if link.is_closed:
            return
        try:
            push = self._connect(link)
        except zmq.ZMQError as error:
            raise Unavailable(f"no tensor link to {link.target}: {error.strerror}") from error
        self._links[push] = link
        with link.lock:
            link.socket = push
        self._flush(link)

    def _connect(self, link: Link) -> "zmq.Socket[bytes]":
        push = self._context.socket(zmq.PUSH)
        try:
            push.setsockopt(zmq.LINGER, 0)
            # Without it messages would be queued for a peer that may never be reached.
            push.setsockopt(zmq.IMMEDIATE, 1)
            # The default of 1,000 messages may be gigabytes that a stuck peer never takes.
            push.setsockopt(zmq.SNDHWM, link.capacity)
            push.setsockopt(zmq.IPV6, link.is_ipv6)
            push.connect(link.target)
        except BaseException:
            push.close()
            raise
        return push

    def _flush(self, link: Link) -> None:
        with link.lock:
            if link.socket is None:
                return
            if not _drain(link):
                self._poller.register(link.socket, zmq.POLLOUT)
            elif link.socket in self._poller:
                self._poller.unregister(link.socket)

    def _close_links(self, links: Sequence[Link]) -> None:
        for link in links:
            with link.lock:
                link.waiting.clear()
                push, link.socket = link.socket, None
            if push is not None:
                del self._links[push]
                if push in self._poller:
                    self._poller.unregister(push)
                push.close()

    def _stop(self) -> None:
        self._is_stopping = True

    def _free(self) -> None:
        with self._lock:
            self._has_ended = True
            for _, done in self._actions:
                done.cancel()
            self._actions.clear()
        self._close_links(list(self._links.values()))
        self._pull.close()
        self._woken.close()


def _drain(link: Link) -> bool:
    """Send what waits, as far as the socket takes it, and say whether it took all; the lock is held."""
    assert link.socket is not None
    try:
        while link.waiting:
            # pyzmq keeps each buffer alive until libzmq has let go of it.
            link.socket.send_multipart(link.waiting[0], zmq.NOBLOCK, copy=False)
            link.waiting.popleft()
    except zmq.Again:
        return False
    return True

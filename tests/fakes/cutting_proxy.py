"""A TCP proxy in front of a worker whose connections are cut on cue, with a reset and in mid-message."""

import asyncio
import socket
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

CHUNK_BYTES = 4096
NO_LINGER = struct.pack("ii", 1, 0)


class CuttingProxy:
    """Listens at `address` and passes bytes on to the target, HOST:PORT, and back.

    is_closing_new: new connections are taken and closed at once. num_connections counts all that
    were passed on.
    """

    def __init__(self, target: str) -> None:
        self.address = ""
        self.is_closing_new = False
        self.num_connections = 0
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._open: set[StreamWriter] = set()
        self._is_connected = asyncio.Event()

    def cut(self) -> None:
        """Reset every open connection, at both ends."""
        self._is_connected.clear()
        for writer in self._open:
            _reset(writer)

    async def wait_until_connected(self) -> None:
        """Wait for a connection that no cut has ended."""
        await self._is_connected.wait()

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Pass one connection on until either end closes it or it is cut."""
        if self.is_closing_new:
            _reset(writer)
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            _reset(writer)
            return
        self.num_connections += 1
        self._is_connected.set()
        ends = {writer, far_writer}
        self._open |= ends
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_pass(reader, far_writer))
                tasks.create_task(_pass(far_reader, writer))
        finally:
            self._open -= ends
            for end in ends:
                end.close()
                with suppress(OSError):
                    await end.wait_closed()


@asynccontextmanager
async def cutting_proxy(target: str) -> AsyncIterator[CuttingProxy]:
    """A proxy on a free port of the loopback interface; its connections are cut in the end."""
    proxy = CuttingProxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    proxy.address = f"{host}:{port}"
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
        await server.wait_closed()


async def _pass(reader: StreamReader, writer: StreamWriter) -> None:
    with suppress(OSError):
        while block := await reader.read(CHUNK_BYTES):
            writer.write(block)
            await writer.drain()
    writer.close()


def _reset(writer: StreamWriter) -> None:
    """Drop a connection so that the other side gets RST instead of an orderly end."""
    connection = writer.get_extra_info("socket")
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
    writer.transport.abort()

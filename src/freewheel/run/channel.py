"""Messages between the supervisor and a role: small JSON objects over a socket that keeps message boundaries.

Sending never blocks: what the supervisor has not read yet stays in the role's queue.
"""

from __future__ import annotations

import json
import select
import socket
from collections import deque
from typing import Any

from freewheel.errors import RoleLost

Message = dict[str, Any]

# A socket's buffer has 200 kB on Linux; messages are far smaller.
MOST_BYTES = 200_000
# About a megabyte of messages: a supervisor that reads none for so long is gone or stopped.
MOST_WAITING = 1000


def pair() -> tuple[socket.socket, socket.socket]:
    """The supervisor's end and the role's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


class Channel:
    """One end. `send` queues what the socket does not take; `receive` returns all messages that have arrived."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.num_dropped = 0
        self.is_open = True
        self._waiting: deque[bytes] = deque()

    def send(self, message: Message) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self.num_dropped += 1
        else:
            self._waiting.append(json.dumps(message).encode())
        self.flush()

    def flush(self) -> None:
        """Sends what is queued, as far as the socket takes it."""
        while self._waiting and self.is_open:
            try:
                self.socket.send(self._waiting[0])
            except BlockingIOError:
                return
            except OSError:  # the other end is gone
                self.is_open = False
                return
            self._waiting.popleft()

    def wait(self, timeout_s: float) -> bool:
        """Sleeps until there is something to receive, at most `timeout_s`."""
        return self.is_open and bool(select.select([self.socket], [], [], timeout_s)[0])

    def receive(self) -> list[Message]:
        found = []
        while self.is_open:
            try:
                data = self.socket.recv(MOST_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if data:
                found.append(json.loads(data))
            self.is_open = bool(data)
        return found

    def commands(self) -> list[Message]:
        """`receive` for a role, which ends when its supervisor is gone."""
        found = self.receive()
        if not self.is_open:
            raise RoleLost("the supervisor is gone.")
        return found

    def close(self) -> None:
        self.is_open = False
        self.socket.close()

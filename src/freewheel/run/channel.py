"""Messages between the supervisor and a role: small JSON objects over a socket that keeps their bounds.

A role never waits to send: what the supervisor has not taken yet stays with the role and goes with the next message.
"""

from __future__ import annotations

import json
import select
import socket
from collections import deque
from typing import Any

from freewheel.errors import RoleLost

Message = dict[str, Any]

# A message fits well into a socket's buffer (200 kB on Linux); longer ones are the sender's mistake.
MOST_BYTES = 100_000
# About a megabyte of messages: a supervisor that takes none for so long is gone or stopped.
MOST_WAITING = 1000


def pair() -> tuple[socket.socket, socket.socket]:
    """The supervisor's end and the role's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


class Channel:
    """One end. `send` gives what fits and keeps the rest in order; `receive` gives all that has come."""

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
        """Gives what waits, as far as the other end takes it."""
        while self._waiting and self.is_open:
            try:
                self.socket.send(self._waiting[0])
            except BlockingIOError:
                return
            except OSError:  # the other end is gone, and nobody reads this any more
                self.is_open = False
                return
            self._waiting.popleft()

    def wait(self, timeout_s: float) -> bool:
        """Sleeps until there is something to receive, at most so long."""
        return self.is_open and bool(select.select([self.socket], [], [], timeout_s)[0])

    def receive(self) -> list[Message]:
        found = []
        while self.is_open:
            try:
                data = self.socket.recv(MOST_BYTES * 2)
            except BlockingIOError:
                break
            except OSError:
                self.is_open = False
                break
            if not data:
                self.is_open = False
                break
            found.append(json.loads(data))
        return found

    def commands(self) -> list[Message]:
        """As `receive`, for a role: without its supervisor nobody needs it any more."""
        found = self.receive()
        if not self.is_open:
            raise RoleLost("the supervisor is gone.")
        return found

    def close(self) -> None:
        self.is_open = False
        self.socket.close()

"""The forkserver, from which the processes of a run are forked: it is started, watched, and replaced when it does not answer."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from multiprocessing import forkserver as standard
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

from freewheel.errors import RoleLost
from freewheel.machine.picklable import without_main
from freewheel.machine.process import ASKS_TO_END, NOBODY, OWNER, is_stopped, owner_id
from freewheel.machine.temp_folder import use_own_folder
from freewheel.machine.threads import VARIABLES, WAITING, environment_kept, wait_passively

# Imports all that the roles of a run need.
ROLES = "freewheel.run.entry"
START_S = 180.0  # to import torch from a cold disk and start a process, on a busy machine
STOPPED_S = 2.0  # a forkserver that stays stopped for longer is killed
LOOK_S = 0.25
# Waits for the end of a killed process: before the forkserver is woken, before it is killed, and after that.
END_S, WOKEN_S, KILLED_S = 0.5, 3.0, 1.0
LAUNCHES, LAUNCH_AGAIN_S = 5, 0.05  # a killed process is gone within milliseconds


def start_forkserver(preload: str = ROLES) -> None:
    """Starts the process from which roles are forked, with everything loaded, unless it runs already.

    Roles inherit its environment: one thread for each numeric library, and the run's mark. It blocks Ctrl-C from its start.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload([preload])
    use_own_folder()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ASKS_TO_END)
    try:
        _start_tracker()
        signal.pthread_sigmask(signal.SIG_BLOCK, ASKS_TO_END)  # the tracker's start lifts a part of it
        with _marked(), environment_kept(*VARIABLES, *WAITING):
            os.environ.update(dict.fromkeys(VARIABLES, "1"))
            wait_passively()
            standard.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def launch(process: BaseProcess, *needs: Any, preload: str = ROLES) -> None:
    """Starts a process, which may `need` things that the user's script defines, within START_S or with a RoleLost.

    A forkserver that was killed is started again; one that is just dying refuses, and one that does not answer is killed.
    """
    due_s, refused = time.monotonic() + START_S, ""
    for _ in range(LAUNCHES):
        start_forkserver(preload)
        try:
            with without_main(*needs), _answered_by(due_s):
                process.start()
            return
        except (ConnectionError, EOFError, FileNotFoundError) as error:
            refused = repr(error)
            if isinstance(error, FileNotFoundError):  # somebody removed the socket at which it listens
                kill_forkserver()
            if time.monotonic() >= due_s:
                break
        time.sleep(LAUNCH_AGAIN_S)
    raise RoleLost(
        f"{process.name} could not be started in {LAUNCHES} attempts or {START_S:.0f} s: {refused}. Something kills or stops the "
        "processes of this run; look at the machine's memory (dmesg)."
    )


def spawn(process: BaseProcess, *needs: Any) -> None:
    """Starts a process that is not forked from the forkserver, with the run's mark."""
    with without_main(*needs), _marked():
        process.start()


def wait_for_end(process: BaseProcess) -> None:
    """Of a process that was killed. Only the forkserver sees that end, so one that does not tell is woken, or else killed."""
    process.join(END_S)
    for number, wait_s in ((signal.SIGCONT, WOKEN_S), (signal.SIGKILL, KILLED_S)):
        if process.exitcode is None:
            _signal(number)
            process.join(wait_s)


def kill_forkserver() -> None:
    """The processes that were forked from it die with it. The next start starts another one."""
    _signal(signal.SIGKILL)


def wake_tracker() -> None:
    """A resource tracker that was stopped ends with this process only if it is woken."""
    tracker: Any = resource_tracker
    if pid := tracker._resource_tracker._pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


class ForkserverWatch:
    """Wakes a forkserver that was stopped, and kills one that stays stopped: no process starts meanwhile, and no death is seen."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def look(self, now: float) -> bool:
        """Whether it was killed."""
        pid = _pid()
        if not pid or not is_stopped(pid):
            self._since_s = None
            return False
        self._since_s = now if self._since_s is None else self._since_s
        is_due = now - self._since_s > STOPPED_S
        _signal(signal.SIGKILL if is_due else signal.SIGCONT)
        return is_due


def _signal(number: int) -> None:
    if pid := _pid():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _pid() -> int:
    """Of the forkserver; 0 before it was started."""
    server: Any = standard
    return server._forkserver._forkserver_pid or 0


@contextlib.contextmanager
def _answered_by(due_s: float) -> Iterator[None]:
    """The wait for the forkserver ends with an EOFError if it is stopped, or has not answered by then: another thread kills it."""
    answered = threading.Event()

    def look() -> None:
        watch = ForkserverWatch()
        while not answered.wait(LOOK_S):
            now = time.monotonic()
            if watch.look(now):
                return
            if now > due_s:
                kill_forkserver()
                return

    thread = threading.Thread(target=look, name="fw-start", daemon=True)
    thread.start()
    try:
        yield
    finally:
        answered.set()
        thread.join()


@contextlib.contextmanager
def _marked() -> Iterator[None]:
    """Programs started within have a place in their environment for the mark of a process."""
    with environment_kept(OWNER):
        os.environ[OWNER] = owner_id() + NOBODY
        yield


def _start_tracker() -> None:
    """The process of multiprocessing that removes named shared memory and semaphores, of which we have none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # if it was killed, nothing of ours can leak
        resource_tracker.ensure_running()

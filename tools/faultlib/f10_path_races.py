"""F10: whoever swaps components of a region's path while it is opened gets an error back, never a mapping outside or a blocked client."""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import socket
import stat
import struct
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faultlib.experiment import Bench, Context, Outcome
from faultlib.orders import Orders, say, settings
from faultlib.stacks import StackProcess, held_stream
from tensor_pool import _native
from tensor_pool.errors import PathNotAllowedError, RegionError

OPENS = 20_000
CONTROL_OPENS = 4_000
STREAM_ID = 10_000
DIRECTORY_DESCRIPTOR, FILE_DESCRIPTOR = 100, 101
LONGEST_OPEN_S = 1.0
_RENAME_EXCHANGE = 2
_IN_OPEN = 0x20
_AT_FDCWD = -100


class PathRaces:
    """A process exchanges each component below the base for seven other things while a client opens the driver's real header ring."""

    name = "F10"
    what = "symlink and TOCTOU races"

    def run(self, context: Context) -> Outcome:
        with context.bench("F10") as bench:
            stack = StackProcess(bench)
            target = held_stream(bench, STREAM_ID)
            outside = _outside_tree(bench, target)
            options = {
                "base": os.path.realpath(bench.directories.shm_base_dir),
                "target": str(target),
                "outside": str(outside),
                "seed": context.seed,
                "opens": context.count(OPENS),
                "control_opens": CONTROL_OPENS,
            }
            swapper = bench.harness.python("swapper", "faultlib.f10_path_races:swapper_process", json.dumps(options))
            kinds = swapper.wait_for_message(event="swapping")["kinds"]
            opener = bench.harness.python("opener", "faultlib.f10_path_races:opener_process", json.dumps(options))
            while opener.is_running and not any(message["event"] == "opened" for message in opener.messages()):
                opened = [message["opens"] for message in opener.messages() if message["event"] == "progress"]
                context.progress((opened or [0])[-1] / options["opens"], "opens")
                time.sleep(0.3)
            result = opener.wait_for_message(event="opened")
            swapper.send({"order": "count", "phase": "race"})
            result["not_regular_opened"] = swapper.wait_for_message(event="watched", phase="race")["opens"]
            opener.send({"order": "control"})
            control = opener.wait_for_message(event="control")
            swapper.send({"order": "count", "phase": "control"})
            control_seen = swapper.wait_for_message(event="watched", phase="control")["opens"]
            swapper.send({"order": "stop"})
            swaps = swapper.wait_for_message(event="swapped")["swaps"]
            swapper.expect_exit(0)
            problems = _problems(result)
            if stack.process.returncode is not None:
                problems.append(f"the driver process ended with {stack.process.returncode}")
            shutil.rmtree(outside)
        void = []
        if not control["outside"]:
            void.append("without our checks the swap never won the race")
        if not control_seen:
            void.append("the watch saw none of the FIFOs and devices that were opened without our checks")
        if not result["real"] or not result["refused"]:
            void.append(f"{result['real']} opens found the real file and {result['refused']} were refused: the swapper did not race")
        figures = {"swaps": sum(swaps.values()), "kinds": kinds, **{k: v for k, v in result.items() if k != "event"}}
        figures |= {"control_outside": control["outside"], "control_not_regular": control["not_regular"], "control_watched": control_seen}
        return Outcome(figures, problems, void)


def _problems(result: dict[str, Any]) -> list[str]:
    problems = []
    if result["other"]:
        problems.append(f"{result['other']} opens mapped a file that is not the driver's, first {result['first_other']}")
    if result["odd_errors"]:
        problems.append(f"errors outside the tree: {result['odd_errors']}")
    if result["not_regular_opened"]:
        problems.append(f"{result['not_regular_opened']} opens of a FIFO or device were seen by inotify")
    if result["longest_open_s"] > LONGEST_OPEN_S:
        problems.append(f"one open took {result['longest_open_s']:.1f} s")
    if result["outside_changed"]:
        problems.append("the file outside was written to")
    return problems


def _outside_tree(bench: Bench, target: Path) -> Path:
    """The same directories and file names beside the base, with a file of the same size that nobody may ever map."""
    outside = bench.directories.shm_base_dir.parent / "outside"
    twin = outside / target.relative_to(bench.directories.shm_base_dir)
    twin.parent.mkdir(parents=True)
    twin.write_bytes(target.read_bytes())
    return outside


# --- the process that swaps ------------------------------------------------------------------------------------------


def swapper_process() -> None:
    options = settings()
    orders = Orders()
    target, outside = Path(options["target"]), Path(options["outside"])
    decoys = _decoys(Path(options["base"]), target, outside)
    # before anything moves, so that each name still is the decoy's
    watch = _OpenWatch([decoy for _, kind, decoy in decoys if kind in ("fifo", "device")])
    say("swapping", kinds=sorted({kind for _, kind, _ in decoys}))
    choice = random.Random(options["seed"])  # noqa: S311 - to be repeated, not to be secret
    swaps: Counter[str] = Counter()
    while not orders.stop.is_set():
        if orders.has_waiting() and (order := orders.next()) is not None and order["order"] == "count":
            say("watched", phase=order["phase"], opens=watch.opens())
        component, kind, decoy = choice.choice(decoys)
        swaps[kind] += 1
        if kind == "mode":
            _change_mode_and_owner(component, choice)
            continue
        exchange(component, decoy)
        _spin(choice.randint(0, 60))
        exchange(component, decoy)
        _spin(choice.randint(0, 60))
    say("swapped", swaps=swaps)


def _spin(rounds: int) -> None:
    for _ in range(rounds):
        pass


def _change_mode_and_owner(path: Path, choice: random.Random) -> None:
    before = path.stat()
    path.chmod(choice.choice((0o000, 0o222, 0o777)))
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    _spin(choice.randint(0, 60))
    if os.geteuid() == 0:
        os.chown(path, before.st_uid, before.st_gid)
    path.chmod(stat.S_IMODE(before.st_mode))


def exchange(one: Path, other: Path) -> None:
    """Both names change places in one step of the kernel."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one))


def _decoys(base: Path, target: Path, outside: Path) -> list[tuple[Path, str, Path]]:
    """(component, kind, what takes its place) for every component below the base."""
    place = outside / ".decoys"
    place.mkdir()
    found = []
    parts = target.relative_to(base).parts
    for depth in range(1, len(parts) + 1):
        component = base.joinpath(*parts[:depth])
        twin = outside.joinpath(*parts[:depth])
        is_file = depth == len(parts)
        descriptor = FILE_DESCRIPTOR if is_file else DIRECTORY_DESCRIPTOR + 10 * depth
        makers: dict[str, Callable[[Path], None]] = {
            "symlink": lambda path, twin=twin: path.symlink_to(twin),  # type: ignore[misc]
            "directory": lambda path: path.mkdir(),
            "fifo": lambda path: os.mkfifo(path),
            "socket": _make_socket,
            "proc_link": lambda path, descriptor=descriptor: path.symlink_to(f"/proc/self/fd/{descriptor}"),  # type: ignore[misc]
        }
        if is_file:
            makers["hard_link"] = lambda path, twin=twin: path.hardlink_to(twin)  # type: ignore[misc]
        if os.geteuid() == 0:
            makers["device"] = lambda path: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        for kind, make in makers.items():
            decoy = place / f"{depth}-{kind}"
            make(decoy)
            found.append((component, kind, decoy))
        found.append((component, "mode", component))
    return found


def _make_socket(path: Path) -> None:
    # the path of a socket is short; the name is made where we stand
    before = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


# --- the client that opens -------------------------------------------------------------------------------------------


def opener_process() -> None:
    options = settings()
    orders = Orders()
    target, outside = options["target"], Path(options["outside"])
    twin = outside / Path(target).relative_to(options["base"])
    _offer_descriptors(Path(options["base"]), Path(target), outside)
    real = _identity_of_the_real_file(options)
    content = twin.read_bytes()
    say("opened", **_race(options, real), outside_changed=twin.read_bytes() != content)
    orders.wait_for("control")
    say("control", **_control(options, real))


def _offer_descriptors(base: Path, target: Path, outside: Path) -> None:
    """What the links through /proc/self/fd lead to: the outside directory of each depth, and the file."""
    parts = target.relative_to(base).parts
    for depth in range(1, len(parts)):
        descriptor = os.open(outside.joinpath(*parts[:depth]), os.O_RDONLY)
        os.dup2(descriptor, DIRECTORY_DESCRIPTOR + 10 * depth)
    os.dup2(os.open(outside.joinpath(*parts), os.O_RDONLY), FILE_DESCRIPTOR)


def _identity_of_the_real_file(options: dict[str, Any]) -> tuple[int, int]:
    """The inode that is at the path when nobody has swapped anything: not the twin's, a regular file with one name."""
    twin = (Path(options["outside"]) / Path(options["target"]).relative_to(options["base"])).stat()
    while True:
        try:
            seen = os.lstat(options["target"])
        except OSError:
            continue
        if stat.S_ISREG(seen.st_mode) and seen.st_ino != twin.st_ino:
            return seen.st_dev, seen.st_ino


def _race(options: dict[str, Any], real: tuple[int, int]) -> dict[str, Any]:
    seen: Counter[str] = Counter()
    odd: Counter[str] = Counter()
    first_other: tuple[int, int] | None = None
    longest_s = 0.0
    for number in range(options["opens"]):
        if number % 2:
            # every other open takes the component walk of kernels without openat2
            _native.failpoint_arm("open.before_openat2", "error")
        began_s = time.perf_counter()
        try:
            region = _native.Region.open(options["target"], [options["base"]], writable=number % 4 < 2, minimum_length=64)
        except PathNotAllowedError:
            seen["refused"] += 1
        except RegionError:
            seen["failed"] += 1
        except Exception as error:  # noqa: BLE001 - any other is a finding
            odd[type(error).__name__] += 1
        else:
            if region.identity == real:
                seen["real"] += 1
            else:
                seen["other"] += 1
                first_other = first_other or region.identity
            region.close()
        longest_s = max(longest_s, time.perf_counter() - began_s)
        if number % 500 == 0:
            say("progress", opens=number)
    return {
        "opens": options["opens"],
        **{name: seen[name] for name in ("real", "refused", "failed", "other")},
        "first_other": first_other,
        "odd_errors": dict(odd),
        "longest_open_s": round(longest_s, 4),
    }


def _control(options: dict[str, Any], real: tuple[int, int]) -> dict[str, int]:
    """The same race without our checks: what a plain `open` of a path that was good a moment ago ends up with."""
    outside = not_regular = 0
    for _ in range(options["control_opens"]):
        try:
            if os.path.realpath(options["target"]) != options["target"]:
                continue
            descriptor = os.open(options["target"], os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
        seen = os.fstat(descriptor)
        os.close(descriptor)
        if not stat.S_ISREG(seen.st_mode):
            not_regular += 1
        elif (seen.st_dev, seen.st_ino) != real:
            outside += 1
    return {"outside": outside, "not_regular": not_regular}


class _OpenWatch:
    """Counts, with inotify, how often any of these files was opened by anyone."""

    def __init__(self, paths: list[Path]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for path in paths:
            if libc.inotify_add_watch(self._descriptor, os.fsencode(path), _IN_OPEN) < 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(path))

    def opens(self) -> int:
        count = 0
        while True:
            try:
                data = os.read(self._descriptor, 65536)
            except BlockingIOError:
                return count
            offset = 0
            while offset < len(data):
                _, _, _, length = struct.unpack_from("iIII", data, offset)
                offset += 16 + length
                count += 1

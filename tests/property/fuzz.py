"""Feed many damaged inputs to everything that reads bytes: `python -m tests.property.fuzz`.

Each input is a sound output of a writer of ours, damaged as a seed chooses. A reader must give a
value or an error of ours, soon, and within the memory that the process is limited to. The command
prints inputs a second for each reader. At the first input that breaks the rule it prints the input
and ends with 1.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import pyarrow as pa
import xxhash

from headgate.control.clock import SYSTEM_CLOCK
from headgate.control.errors import HeadgateError
from headgate.control.events import codec
from headgate.control.ids import JobId
from headgate.control.model.replay import Snapshot
from headgate.control.model.state import ResultState
from headgate.control.snapshots import container
from headgate.control.snapshots import records as snapshots
from headgate.control.snapshots.records import Standing
from headgate.storage.format import manifest_shards, messages, segment
from headgate.storage.stores.memory import MemoryBlobStore

from ..doubles.damaged import SUBPARTITIONS, sound
from ..doubles.events import BODIES, GOLDEN, event
from ..doubles.segments import CODECS, RESULT
from .lifecycle_model import JOB, OPENING, RESULTS, run

ROOM_BYTES = 256 << 20  # on top of the memory at the start
INPUT_S_MAX = 2.0
BLOCK = 2_000
ODD = (0x00, 0x01, 0x7F, 0x80, 0xFF)
LARGE = b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"  # the longest Avro number


@dataclass(frozen=True)
class Reader:
    """A function that reads bytes, and sound inputs for it."""

    name: str
    read: Callable[[bytes], object]
    sound: Sequence[bytes]


def readers() -> Iterator[Reader]:
    golden = [
        bytes.fromhex(text)
        for path in sorted(GOLDEN.glob("*.json"))
        for text in json.loads(path.read_text()).values()
    ]
    yield Reader("event", codec.decode, [*golden, *(codec.encode(event(b)) for b in BODIES)])
    written = sound("none")
    index = written.state.produced(0).segments[0].index
    yield Reader("index", lambda raw: segment.SegmentIndex.unpacked(raw, SUBPARTITIONS), [index])
    plain = segment.SegmentIndex.unpacked(index, SUBPARTITIONS).entries()

    def sealed(raw: bytes) -> object:
        digest = xxhash.xxh3_64_intdigest(raw).to_bytes(8, "little")
        return segment.SegmentIndex.from_entries(digest + raw, SUBPARTITIONS)

    yield Reader("sealed index", sealed, [plain[8:]])
    yield from _snapshot_readers()
    source = written.manifest.sources[0]
    body, attempt = written.objects[source.name][0], source.attempt

    def footer(raw: bytes) -> object:
        store = MemoryBlobStore({"o": (raw, "w")})
        return segment.fetch_index(store, "o", len(body), attempt, SUBPARTITIONS)

    packed = sound("packed").objects[source.name][0]
    yield Reader("footer", footer, [body, packed.rjust(len(body))])
    rows = pa.record_batch([pa.array(range(9))] * 9, [*map(str, range(9))])
    schema = rows.schema.serialize().to_pybytes()

    def unpacked(raw: bytes) -> object:
        return list(messages.decode(memoryview(raw), schema, 9))

    yield Reader(
        "packed message", unpacked, [b"".join(messages.pack(rows, codec)) for codec in CODECS]
    )
    shard = manifest_shards.encode(written.manifest)
    yield Reader("manifest", lambda raw: manifest_shards.decode(raw, RESULT), [shard])


def _snapshot_readers() -> Iterator[Reader]:
    """Yield readers of each snapshot record beside its sound neighbours, and of the records'
    content behind a right checksum, as a foreign writer may make it."""
    state = run(list(OPENING))[0]
    records, _ = snapshots.write(Snapshot(state, (), 9, 1), Standing())
    stored = {record.key: record.body for record in records if record.body is not None}
    frame_bytes = snapshots._FRAME.size
    for key, kind in ((JOB, snapshots.Index), (f"{JOB}/{RESULTS[0]}", ResultState)):

        def parse(raw: bytes, kind: type[object] = kind) -> object:
            return container.unpack(raw, kind, lambda notes: None)

        yield Reader(f"sealed snapshot {key}", parse, [stored[key][frame_bytes:]])
    for key in stored:

        def read(raw: bytes, key: str = key) -> object:
            return snapshots.read(JobId(JOB), {**stored, key: raw})

        yield Reader(f"snapshot {key}", read, [stored[key]])


def damaged(dice: Random, whole: bytes, other: bytes) -> bytes:
    """Damage sound bytes in one to four ways."""
    raw = bytearray(whole)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        at, size = dice.randrange(len(raw) + 1), dice.choice((1, 1, 2, 4, 8, 100))
        match dice.randrange(9):
            case 0 if at < len(raw):
                raw[at] ^= 1 << dice.randrange(8)
            case 1 if at < len(raw):
                raw[at] = dice.choice(ODD)
            case 2:
                del raw[at:]
            case 3:
                del raw[at : at + size]
            case 4:
                raw[at:at] = dice.randbytes(size)
            case 5:
                raw[at : at + size] = dice.randbytes(size)
            case 6:
                raw[at:at] = raw[max(0, at - size) : at] * dice.choice((1, 2, 50))
            case 7:
                raw[at : at + size] = LARGE
            case _:
                raw[at:] = other[dice.randrange(len(other) + 1) :]
    return bytes(raw)


def fuzz(reader: Reader, inputs: int, seed: int) -> tuple[int, str]:
    """Return how many inputs gave a value, and the first forbidden error or delay, if any."""
    for raw in reader.sound:
        reader.read(raw)
    fine = 0
    for block in range(0, inputs, BLOCK):
        dice = Random(f"{seed} {reader.name} {block}")
        for _ in range(min(BLOCK, inputs - block)):
            raw = damaged(dice, dice.choice(reader.sound), dice.choice(reader.sound))
            began_s = SYSTEM_CLOCK.monotonic_s()
            try:
                reader.read(raw)
                fine += 1
            except HeadgateError:
                pass
            except BaseException as exc:
                return fine, f"{type(exc).__name__}: {exc}: {raw.hex()}"
            if SYSTEM_CLOCK.monotonic_s() - began_s > INPUT_S_MAX:
                return fine, f"more than {INPUT_S_MAX} s: {raw.hex()}"
    return fine, ""


def confine() -> None:
    """Limit the further memory of this process."""
    with open("/proc/self/statm") as pages:
        held_bytes = int(pages.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (held_bytes + ROOM_BYTES, hard))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.property.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of all readers together")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    all_readers = list(readers())
    confine()
    tried = Counter[str]()
    for reader in all_readers:
        began_s, each = SYSTEM_CLOCK.monotonic_s(), given.inputs // len(all_readers)
        fine, wrong = fuzz(reader, each, given.seed)
        tried[reader.name] = each
        rate = each / (SYSTEM_CLOCK.monotonic_s() - began_s)
        print(f"{each:>12,} {reader.name:<24} {fine:>10,} read {rate:>9,.0f}/s", flush=True)
        if wrong:
            print(f"{reader.name}: {wrong}")
            return 1
    print(f"{tried.total():,} inputs: errors of ours, or values")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""What comes out of the JVM: whole, or not at all."""

from __future__ import annotations

import io
import struct

import pytest
from pyspark.serializers import SpecialLengths

from headgate.connectors.spark.roads import Frames

FRAMES = [b"first", b"", b"third"]
END = struct.pack("!i", SpecialLengths.END_OF_DATA_SECTION)
SENT = b"".join(struct.pack("!i", len(frame)) + frame for frame in FRAMES) + END


def test_frames_end_with_their_mark() -> None:
    """What was sent comes out, up to the mark and not beyond."""
    found = [frame.to_pybytes() for frame in Frames().load_stream(io.BytesIO(SENT + b"more"))]
    assert FRAMES == found


@pytest.mark.parametrize("sent", range(len(SENT)))
def test_frames_without_their_mark_are_an_error(sent: int) -> None:
    """Wherever a stream is cut off, also between two frames, its rows are not taken for all there
    are: the JVM closes it so when a task upstream fails."""
    with pytest.raises((EOFError, struct.error)):
        list(Frames().load_stream(io.BytesIO(SENT[:sent])))

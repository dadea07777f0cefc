"""A frame that is filled where it will be read."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from tensor_pool import _native
from tensor_pool.errors import ClosedError
from tensor_pool.producer.arrays import Array, DeclaredFrame
from tensor_pool.sbe.control import MajorOrder
from tensor_pool.tensors import wire_dtype

if TYPE_CHECKING:
    from tensor_pool.client.producer import Producer


class ClaimedSlot:
    """A slot of the ring while the user fills it. Afterwards `array` is read-only; a part of it that was taken before is not, and writing
    there would change the frame under its readers.
    """

    __slots__ = ("_array", "_claim", "_frame", "_producer", "_settled", "_timestamp_ns", "_trace_id")

    def __init__(self, producer: Producer, claim: _native.Claim, frame: DeclaredFrame, timestamp_ns: int, trace_id: int) -> None:
        self._producer = producer
        self._claim = claim
        self._frame = frame
        self._timestamp_ns = timestamp_ns
        self._trace_id = trace_id
        self._settled = False
        self._array: Array = np.ndarray(frame.shape, frame.dtype, claim)  # type: ignore[arg-type] # numpy's stubs know no Buffer

    @property
    def array(self) -> Array:
        """The payload, to be filled. In a child made by fork it is the parent's, and asking for it raises `ClosedError`."""
        self._claim.check_here()
        return self._array

    @property
    def seq(self) -> int:
        """The seq that the frame will have."""
        return self._claim.seq

    def commit(self) -> int:
        """Publish the frame now. Returns its seq."""
        self._array.setflags(write=False)
        try:
            if self._frame is self._producer.declared:
                return self._claim.commit_declared(self._timestamp_ns, self._trace_id)
            return self._claim.commit(
                wire_dtype(self._frame.dtype),
                MajorOrder.ROW,
                self._frame.shape,
                timestamp_ns=self._timestamp_ns,
                meta_version=0,
                trace_id=self._trace_id,
                publish_timestamp=self._producer.stamps_descriptors,
            )
        except ClosedError:
            if self._settled:
                raise
            # the lease went while the slot was being filled
            raise self._producer.not_attached_error() from None
        finally:
            self._settled = True

    def abort(self) -> None:
        """Give the slot back; the next frame gets its seq."""
        self._array.setflags(write=False)
        self._settled = True
        self._claim.abort()

    def close(self) -> None:
        """Abort, unless the slot was settled before. In a forked child: nothing."""
        if not self._settled:
            self.abort()

    def __enter__(self) -> ClaimedSlot:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.commit()
        else:
            self.abort()

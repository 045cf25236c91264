"""Objects in a bucket."""

from __future__ import annotations

from collections.abc import Callable

from ._call import Call, begin, call
from ._hold import Message
from ._requests import ANSWER_TIMEOUT, OBJECT_TIMEOUT, decoded, encoded, expect
from ._types import Duration, milliseconds


class Object:
    """An object in a bucket that several writers may change."""

    def __init__(self, url: str, content_type: str | None) -> None:
        self._url = url
        self._content_type = content_type

    def get(self, fence: int | None = None) -> bytes | None:
        """Returns the content, or ``None`` if there is no object. With ``fence``, later writes with lower tokens are
        refused."""
        return decoded(expect(call(self._fields("get", fence), None), "object"))

    def put(self, content: bytes, *, fence: int) -> None:
        """Writes the object. Raises :class:`LockLost` if a higher token has written it before."""
        fields = self._fields("put", fence)
        expect(call({**fields, **self._typed(), "content": encoded(content)}, OBJECT_TIMEOUT), "done")

    def update(
        self,
        change: Callable[[bytes | None], bytes | None],
        *,
        fence: int | None = None,
        attempts: int | None = None,
        within: Duration | None = None,
    ) -> bool:
        """Replaces the content with ``change(content)``. Calls ``change`` again if another writer was faster.

        ``change`` gets ``None`` if there is no object, and returns ``None`` to leave the object unchanged. Returns
        whether the object was written.
        """
        fields = {**self._fields("update", fence), **self._typed()}
        if attempts is not None:
            fields["attempts"] = attempts
        if within is not None:
            fields["within_ms"] = milliseconds(within, "within")
        request = begin(fields)
        while True:
            # Has no limit: the agent runs only some updates at a time, and `change` may take long.
            message = request.next()
            if message["ev"] != "content":
                return bool(expect(message, "updated")["written"])
            try:
                content = change(decoded(message))
                fields = {"op": "answer", "request": request.pending.id, "content": encoded(content)}
                Call(request.agent, fields).next(ANSWER_TIMEOUT)
            except BaseException:
                request.abandon()
                raise

    def _fields(self, op: str, fence: int | None) -> Message:
        return {"op": op, "object": self._url, **({} if fence is None else {"fence": fence})}

    def _typed(self) -> Message:
        return {} if self._content_type is None else {"content_type": self._content_type}


def open_object(url: str, *, content_type: str | None = None) -> Object:
    """Opens an object by its URL, such as ``s3://bucket/counter.json``. Sends no request."""
    return Object(url, content_type)

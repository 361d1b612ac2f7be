"""When one sequence arrived, was queued, ran first, and had its first and its newest token."""


class RequestTimes:
    """Moments in seconds of the monotonic clock; None until the moment has come.

    The engine notes the arrival, the loop all else.
    """

    __slots__ = ("arrived", "first_token", "last_token", "queued", "scheduled")

    def __init__(self, *, arrived: float) -> None:
        self.arrived = arrived
        self.queued: float | None = None
        self.scheduled: float | None = None
        self.first_token: float | None = None
        self.last_token: float | None = None
